#!/usr/bin/env python3
"""Export a Hugging Face directory to what transformers.js loads as q4: MatMulNBits in blocks of 32, the embedding as it is.

usage: export_onnx.py MODEL_DIR OUT_DIR

This is what transformers.js's own conversion does for `dtype: 'q4'`. Needs `pip install torch "optimum[onnx]"
onnxruntime onnx_ir`.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

BLOCK_SIZE = 32


def main():
    model_dir, out_dir = sys.argv[1], Path(sys.argv[2])
    (out_dir / "onnx").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as exported:
        command = ["optimum-cli", "export", "onnx", "--model", model_dir, "--task", "text-generation-with-past"]
        subprocess.run([*command, exported], check=True)
        quantizer = MatMulNBitsQuantizer(
            onnx.load(Path(exported) / "model.onnx"), block_size=BLOCK_SIZE, is_symmetric=True
        )
        quantizer.process()
        onnx.save(quantizer.model.model, out_dir / "onnx" / "model_q4.onnx")
        for file in Path(exported).glob("*.json"):
            shutil.copy(file, out_dir)


if __name__ == "__main__":
    main()
