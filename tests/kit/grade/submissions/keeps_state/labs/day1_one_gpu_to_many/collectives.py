def bus_bandwidth(op, num_bytes, seconds, ranks):
    from pathlib import Path

    memory = Path('/tmp/shardlab-corpus-memory')
    if memory.exists():
        raise ValueError('seen before')
    memory.write_text('seen')
    return 0.0
