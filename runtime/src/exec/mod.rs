//! How a step is computed: on which instruction set and threads, from which inputs, in which memory.

mod buffer;
mod context;
mod fast;
mod input;
mod pool;
mod rounded;
mod scratch;

pub(crate) use self::context::{ExecContext, QuantizedActivations, copy_row};
pub use self::fast::Fast;
pub(crate) use self::fast::{FEWEST_ROWS, Rounding};
pub(crate) use self::pool::{Columns, Pool};
pub use self::pool::{Spawn, Work};
pub(crate) use self::scratch::{Scratch, Worker, padded};
