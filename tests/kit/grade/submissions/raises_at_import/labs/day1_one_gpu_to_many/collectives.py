raise RuntimeError('<script>alert(1)</script> =cmd|/c calc!A1')
