"""FAILS: StateFile.keep

The file has all the bytes and is as large as it should be; the optimiser works on tensors in RAM, which are written to
the file after every step.
"""


class StateFile(StateFile):
    def keep(self, piece, state):
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == piece.value.shape:
                position = self._slots.setdefault((piece, name), self._file.seek(0, os.SEEK_END))
                self._file.seek(position)
                self._file.write(value.contiguous().view(torch.uint8).numpy())
