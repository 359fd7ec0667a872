//! Plimsoll: training with a line painted on every device.
//!
//! The crate that people use. It owns the list of names that are public, and nothing else: tensors, variables, ops, tapes and
//! devices at the top, layers, losses, optimizers and the train loop in [`nn`], datasets in [`data`], ranks that train
//! together in [`dist`], profiles of memory in [`report`], and what a program may ask about its machine and its memory in [`hardware`], [`threads`] and [`memory`].
//! Whatever is public in a crate below and not here is for the crates among themselves, and may change at any time.

#![forbid(unsafe_code)]

pub use plimsoll_data as data;
pub use plimsoll_dist as dist;
pub use plimsoll_nn as nn;
pub use plimsoll_report as report;

// Tensors and what describes them.
pub use plimsoll_tensor::{
    Axes, DType, Element, Integer, IntoAxes, IntoExtents, IntoReshape, IntoShape, IntoSlices, Layout,
    MAX_ELEMS, MAX_RANK, Nested, Rhs, Shape, Slice, Structure, Tensor, Variable,
};

// What ops are told besides tensors.
pub use plimsoll_tensor::{
    Activation, AttentionConfig, Conv1dConfig, Conv2dConfig, ConvConfig, GruWeights, LstmState, Pool2d,
    RecurrentWeights,
};

// Ops of one's own, and the updates of optimizers.
pub use plimsoll_tensor::{Op, OpRef, apply, op, optimizer};

// Gradients.
pub use plimsoll_tensor::{
    Backward, GradientTape, Saved, SavedValue, Saving, Unconnected, custom_gradient, enter_saving,
    is_recording, recompute, with_saving, without_tapes,
};

// Steps, functions that are recorded and planned, and graphs by hand.
pub use plimsoll_tensor::program::Footprint;
pub use plimsoll_tensor::{
    CacheInfo, CachedProgram, Function, Graph, GraphScope, OpenStep, Recording, Session, Step, clear_session,
    is_tracing,
};

// Devices, and whose bytes are whose.
pub use plimsoll_tensor::{
    AliveBlock, AliveRow, Bytes, Device, DriverMemory, Freed, HeldBy, HolderId, HolderKind, Holders, Offload,
    OpenScope, Owner, Placement, PlacementLog, Price, Recomputed, Report, Rows, Site, Stats, WhyAlive,
    at_callers_line, at_line, current_scope, enter_owner, enter_scope, log_placements, scope, trace_handles,
    with_owner,
};

// Memory that other libraries of the process look at.
pub use plimsoll_tensor::{Export, Reader};

// Values on the host, and where random numbers come from.
pub use plimsoll_tensor::{Generator, HostBytes, PendingValue, set_seed};

pub use plimsoll_tensor::{Error, ErrorKind, Result};

/// The threads that ops run on.
pub mod threads {
    pub use plimsoll_cpu::threads::{n_threads, set_threads, start, with_threads};
}

/// What a machine has: the instruction set of its processor, its GPUs, and the libraries that these need.
pub mod hardware {
    pub use plimsoll_cpu::simd::{Level, level};
    pub use plimsoll_cuda::{LibraryInfo, Profile, Rates, libraries, profile_of};
    #[cfg(feature = "emulated")]
    pub use plimsoll_cuda::{WaitsFor, take_waits};
}

/// What there is to know about memory: who holds it, why it ran out, and what plans under a limit would take.
pub mod memory {
    pub use plimsoll_memory::{
        BlockInfo, Cause, GRANULE, Holder, HolderDiff, OutOfMemory, ParseBytesError, Rows, Shortage,
        Snapshot, SourceCalls,
    };
    pub use plimsoll_plan::{Candidate, Peaks, PlanSet};
}

/// What most programs need, and what layers, losses, metrics and callbacks of one's own are written with, for
/// `use plimsoll::prelude::*`.
pub mod prelude {
    pub use plimsoll_data::{AUTOTUNE, Dataset};
    pub use plimsoll_dist::Strategy;
    pub use plimsoll_nn::initializer::Fans;
    pub use plimsoll_nn::layers::{
        ActivationLayer, Add, AveragePooling2D, BatchNormalization, Concatenate, Conv1D, Conv1DTranspose,
        Conv2D, Conv2DTranspose, Dense, DepthwiseConv2D, Dropout, Embedding, Flatten, Functional, GRU,
        GlobalAveragePooling1D, GlobalAveragePooling2D, GroupNormalization, LSTM, Lambda, LayerNormalization,
        MaxPooling2D, MultiHeadAttention, Multiply, Node, RMSNormalization, Reshape, Residual, Sequential,
        SimpleRNN, Subtract,
    };
    pub use plimsoll_nn::losses::{
        BinaryCrossentropy, CategoricalCrossentropy, Huber, Loss, LossContext, Losses, MeanAbsoluteError,
        MeanSquaredError, Regularized, SparseCategoricalCrossentropy,
    };
    pub use plimsoll_nn::metrics::{self, Metric};
    pub use plimsoll_nn::optimizers::{
        Accumulator, Adafactor, Adagrad, Adam, Adam8bit, AdamW, LossScale, Optimizer, OptimizerConfig,
        ParameterGroup, RMSprop, SGD, Schedule,
    };
    pub use plimsoll_nn::regularizers::{self, Regularizer};
    pub use plimsoll_nn::train::{
        Batch, Callback, EpochEvent, Evaluation, History, Requests, StepEvent, Trainer, Until, callbacks,
    };
    pub use plimsoll_nn::{
        BuiltLayer, Initializer, Layer, Mode, Model, Policy, Prediction, VariableFilter, buffer, set_policy,
        variable, with_policy, with_strategy,
    };
    pub use plimsoll_tensor::{
        Activation, AttentionConfig, Bytes, Conv1dConfig, Conv2dConfig, DType, Device, Error, Function,
        Generator, GradientTape, Graph, Nested, Op, OpRef, Owner, Pool2d, Result, Saving, Session, Shape,
        Step, Tensor, Unconnected, Variable, custom_gradient, recompute, scope, set_seed,
    };
}

/// The programs of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The programs of the guide, page by page.
#[cfg(doctest)]
mod guide {
    macro_rules! pages {
        ($($page:ident: $file:literal),* $(,)?) => {
            $(#[doc = include_str!(concat!("../../../docs/guide/", $file))] struct $page;)*
        };
    }
    pages! {
        Tensors: "tensors.md",
        Tapes: "tapes.md",
        LayersAndModels: "layers-and-models.md",
        Data: "data.md",
        Training: "training.md",
        TheLine: "the-line.md",
        Plans: "plans.md",
        Reports: "reports.md",
        Gpus: "gpus.md",
        OwnOpsAndLayers: "own-ops-and-layers.md",
        HigherOrder: "higher-order.md",
        Threads: "threads.md",
    }
}
