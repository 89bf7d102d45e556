WRITTEN_ON = 'Windows'
