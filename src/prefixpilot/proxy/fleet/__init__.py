"""Several engines behind one proxy: which of them gets a request, and which are fit for one."""
