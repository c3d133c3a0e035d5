//! The arguments that name a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use smolconv::Mix;

/// Which model, and as what it is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// The model: a blob that smolconv wrote, a GGUF file, a checkpoint's directory or .safetensors file, a name that
    /// `smolconv list` shows, or the id of a model on the Hugging Face hub: ORG/NAME, ORG/NAME@REVISION or
    /// ORG/NAME/FILE.gguf.
    ///
    /// What is no blob is fetched if it has to be, and converted once: `smolrun cache list` shows what came of it. A
    /// path that is there comes before a name.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) dtype: DtypeArgs,
}

/// As what a model is run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DtypeArgs {
    /// How the weights of a checkpoint are stored [default: bf16 for one in bf16, and for a GGUF file that is
    /// quantized; f32 for one in f32 or f16].
    ///
    /// The default is the smaller of f32 and bf16 that has the checkpoint's numbers exactly, or about as exactly as a
    /// quantized GGUF file: the same logits as from the checkpoint itself, as fast as exact ones come. (f16 has more
    /// digits than bf16.) q8 is faster and loses next to nothing; q4 and q3 are smaller still, and are calibrated for
    /// minutes.
    #[arg(long, value_enum, value_name = "DTYPE")]
    dtype: Option<DtypeArg>,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DtypeArg {
    /// The checkpoint's numbers, whatever they are.
    F32,
    /// Half the bytes; the same logits if the checkpoint is in bf16.
    Bf16,
    /// 8 bits per weight.
    Q8,
    /// 4 to 6 bits per weight, calibrated.
    Q4,
    /// 3 to 6 bits per weight, calibrated.
    Q3,
}

impl DtypeArgs {
    /// What was asked for.
    pub(crate) fn mix(self) -> Option<Mix> {
        self.dtype.map(|dtype| match dtype {
            DtypeArg::F32 => Mix::F32,
            DtypeArg::Bf16 => Mix::Bf16,
            DtypeArg::Q8 => Mix::Q8,
            DtypeArg::Q4 => Mix::Q4,
            DtypeArg::Q3 => Mix::Q3,
        })
    }
}
