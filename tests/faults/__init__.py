"""What can befall the files of a run, and the judge of what an audit then says."""
