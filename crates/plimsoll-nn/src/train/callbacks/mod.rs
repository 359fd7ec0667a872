//! The callbacks, one per file.

mod early_stopping;
mod lambda_callback;
mod learning_rate_scheduler;
mod log;
mod model_checkpoint;
mod monitor;
mod reduce_lr_on_plateau;
mod tensorboard;
mod watch_growth;

pub use early_stopping::EarlyStopping;
pub use lambda_callback::LambdaCallback;
pub use learning_rate_scheduler::LearningRateScheduler;
pub use log::Log;
pub use model_checkpoint::ModelCheckpoint;
pub use reduce_lr_on_plateau::ReduceLROnPlateau;
pub use tensorboard::TensorBoard;
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
