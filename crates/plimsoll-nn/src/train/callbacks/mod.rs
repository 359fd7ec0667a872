//! The callbacks, one per file.

mod checkpoint;
mod early_stop;
mod log;
mod monitor;
mod rate;
mod reduce_lr;
mod tensorboard;
mod watch;
mod watch_growth;

pub use checkpoint::Checkpoint;
pub use early_stop::EarlyStop;
pub use log::Log;
pub use rate::LearningRate;
pub use reduce_lr::ReduceLROnPlateau;
pub use tensorboard::TensorBoard;
pub use watch::Watch;
pub use watch_growth::WatchGrowth;

use plimsoll_tensor::{Error, Result};

/// The best value so far as text that comes back bit for bit.
fn to_text(value: f64) -> String {
    format!("{:016x}", value.to_bits())
}

fn from_text(callback: &'static str, text: &str) -> Result<f64> {
    u64::from_str_radix(text, 16).map(f64::from_bits).map_err(|_| {
        Error::argument(callback, format!("the checkpoint keeps {text:?}, which is not a number"))
    })
}
