//! Models of several tensors: networks through `Trainer`, under limits, against plans and hand-written loops, saved and
//! loaded; and what is refused.

mod contract;
mod networks;
mod runs;
