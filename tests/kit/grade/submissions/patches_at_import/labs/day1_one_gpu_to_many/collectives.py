dist.batch_isend_irecv = lambda messages: []
dist.isend = dist.irecv = lambda *inputs, **options: None
