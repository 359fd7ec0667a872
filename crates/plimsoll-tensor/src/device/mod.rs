//! Devices: where tensors live and ops run.
//!
//! A device is a pool of memory, a profile and a name. There is one pool per device, never one per thread. A
//! ghost device is the same device with ghost pages: programs run on it with shapes alone, through the same
//! allocator, so that it tells the bytes of the real run.

pub(crate) mod checksum;
pub(crate) mod driver_memory;
pub(crate) mod evictor;
pub(crate) mod fault;
pub(crate) mod foreign;
pub(crate) mod graphs;
pub(crate) mod handle_lines;
pub(crate) mod holders;
pub(crate) mod offload_store;
pub(crate) mod piece;
pub(crate) mod rates;
pub(crate) mod report;
pub(crate) mod storage;
pub(crate) mod survey;
pub(crate) mod why_alive;

#[cfg(feature = "emulated")]
use std::cell::OnceCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};

use plimsoll_cuda::{Gpu, Profile};
use plimsoll_memory::{Block, Bytes, GhostPages, HostPages, Label, Pool, Snapshot, Stats};
use plimsoll_plan::{LazyPlanSet, Peaks, PlanSetCache, Trace};

use crate::base::error::{Error, Result};
use crate::device::checksum::VERIFIES;
use crate::device::driver_memory::DriverMemory;
use crate::device::evictor::{Evict, Evictor};
use crate::device::graphs::GraphState;
use crate::device::offload_store::{Offload, OffloadStore};
use crate::device::report::Report;

/// A device: cheap to clone, equal to its clones.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    name: String,
    /// How many devices the process had made before.
    number: u64,
    pool: Pool,
    hardware: Hardware,
    evictor: Arc<Evictor>,
    /// Where offloaded values wait.
    offload_store: Mutex<Option<Arc<OffloadStore>>>,
    n_recomputed: AtomicU64,
    recomputed_flops: AtomicU64,
    verifies: AtomicBool,
    /// CUDA graphs of its programs.
    graphs: GraphState,
    /// Whether backward may make sums in any order.
    unordered: AtomicBool,
    offloaded_bytes: AtomicU64,
    /// The bytes of tensors over memory that somebody else has.
    foreign_bytes: AtomicU64,
    /// On a ghost, the plans of steps that were made on it and on its ghosts.
    plan_sets: Option<Arc<Mutex<PlanSetCache>>>,
    /// The ghost on which tensors of this device are described,
    specs: OnceLock<Device>,
    /// and on such a ghost, the device.
    described: Option<WeakDevice>,
    /// Whether its tensors are those of a graph under construction, which means nothing outside it.
    is_symbolic: AtomicBool,
}

/// A device that may be gone.
pub(crate) struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    /// Whether it is that device.
    pub fn is(&self, device: &Device) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&device.0))
    }

    /// Whether somebody still has it.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for WeakDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakDevice")
    }
}

/// The work that was recomputed to keep a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recomputed {
    /// The ops that ran once more.
    pub ops: u64,
    /// Their floating-point operations, by formula.
    pub flops: u64,
}

/// What runs the ops of a device.
enum Hardware {
    /// This machine's processor, or nothing at all for its ghost.
    Cpu,
    /// A GPU.
    Gpu(Arc<Gpu>),
    /// Nothing: the ghost of a GPU of that model.
    GhostGpu(Box<Profile>),
}

/// The GPUs that a process can name.
const MAX_GPUS: usize = 16;

impl Device {
    /// The CPU of this machine, with the process's pool of host memory.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(Device::separate_cpu).clone()
    }

    /// The CPU with a pool of its own: for a part of a program that is to have its own limit and report, and for
    /// tests.
    pub fn separate_cpu() -> Device {
        let pages = HostPages::new().unwrap_or_else(|refused| {
            log::warn!("{refused}; whatever needs memory will be refused");
            HostPages::none()
        });
        Device::over("cpu", Pool::new(pages))
    }

    /// A CPU that only counts: the ghost of an idle one.
    #[doc(alias("meta", "fake"))]
    pub fn ghost_cpu() -> Device {
        Device::separate_cpu().ghost()
    }

    /// The device of that name: `cpu` or `cuda:0`, also written `/CPU:0` and `/GPU:0` as in TensorFlow.
    ///
    /// # Errors
    /// A name that means no device, a device that is not there.
    #[doc(alias = "device")]
    pub fn named(name: &str) -> Result<Device> {
        match Kind::parse(name)? {
            Kind::Cpu => Ok(Device::cpu()),
            Kind::Cuda(number) => Device::cuda(number),
        }
    }

    /// The device of that name if it is there, else the CPU; the first time, a warning says so.
    ///
    /// # Errors
    /// A name that means no device.
    pub fn named_or_cpu(name: &str) -> Result<Device> {
        static SAID: Once = Once::new();
        Kind::parse(name)?;
        Device::named(name).or_else(|_| {
            SAID.call_once(|| log::warn!("device {name:?} is not there; running on the CPU"));
            Ok(Device::cpu())
        })
    }

    /// The number of the GPU that a name such as `cuda:0` means; none if it means the CPU. Nothing is opened.
    ///
    /// # Errors
    /// A name that means no device.
    pub fn gpu_number(name: &str) -> Result<Option<usize>> {
        match Kind::parse(name)? {
            Kind::Cpu => Ok(None),
            Kind::Cuda(number) => Ok(Some(number)),
        }
    }

    /// A device over a given pool.
    #[doc(hidden)]
    pub fn over(name: &str, pool: Pool) -> Device {
        Device::with(name, pool, Hardware::Cpu)
    }

    fn with(name: &str, pool: Pool, hardware: Hardware) -> Device {
        let device = Device(Arc::new(Device::inner(name, pool, hardware)));
        // An empty pool without a limit can set anything aside.
        let set = device.set_graph_room();
        debug_assert!(set.is_ok(), "{set:?}");
        device
    }

    fn inner(name: &str, pool: Pool, hardware: Hardware) -> Inner {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pool_is_ghost = pool.is_ghost();
        Inner {
            name: name.to_owned(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            pool,
            hardware,
            evictor: Arc::default(),
            offload_store: Mutex::default(),
            n_recomputed: AtomicU64::new(0),
            recomputed_flops: AtomicU64::new(0),
            verifies: AtomicBool::new(*VERIFIES),
            graphs: GraphState::default(),
            unordered: AtomicBool::new(false),
            offloaded_bytes: AtomicU64::new(0),
            foreign_bytes: AtomicU64::new(0),
            plan_sets: pool_is_ghost.then(Arc::default),
            specs: OnceLock::new(),
            described: None,
            is_symbolic: AtomicBool::new(false),
        }
    }

    /// A GPU of this machine, with the process's pool of its memory. Nothing is taken in advance.
    ///
    /// # Errors
    /// No such GPU, no driver, or one that is too old; the text says what was looked for.
    pub fn cuda(number: usize) -> Result<Device> {
        static GPUS: [OnceLock<Device>; MAX_GPUS] = [const { OnceLock::new() }; MAX_GPUS];
        let Some(gpu) = GPUS.get(number) else {
            return Err(Error::device(
                "device",
                format!("cuda:{number} is not there; there are {MAX_GPUS} at most"),
            ));
        };
        match gpu.get() {
            Some(device) => Ok(device.clone()),
            None => {
                let opened = Device::separate_cuda(number)?;
                Ok(gpu.get_or_init(|| opened).clone())
            }
        }
    }

    /// A GPU with a pool of its own: for a part of a program that is to have its own limit and report, and for tests.
    ///
    /// # Errors
    /// As for [`Device::cuda`].
    pub fn separate_cuda(number: usize) -> Result<Device> {
        static GPUS: [Mutex<Option<Arc<Gpu>>>; MAX_GPUS] = [const { Mutex::new(None) }; MAX_GPUS];
        let Some(opened) = GPUS.get(number) else {
            return Err(Error::device(
                "device",
                format!("cuda:{number} is not there; there are {MAX_GPUS} at most"),
            ));
        };
        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            let missing = |error: plimsoll_cuda::Error| {
                let reason = error.message();
                Error::device("device", format!("cuda:{number} cannot be used; name `cpu` instead: {reason}"))
            };
            *opened = Some(Gpu::open(number).map_err(missing)?);
        }
        let gpu = opened.clone().unwrap_or_else(|| unreachable!("opened just now"));
        Device::over_gpu(&format!("cuda:{number}"), gpu)
    }

    /// A GPU that the host plays, with a pool of its own: for tests on machines without one. Each thread has its own, so
    /// that tests do not count each other's waits.
    ///
    /// # Errors
    /// No C++ compiler.
    #[cfg(feature = "emulated")]
    pub fn emulated() -> Result<Device> {
        thread_local!(static GPU: OnceCell<Arc<Gpu>> = const { OnceCell::new() });
        let gpu = match GPU.with(|gpu| gpu.get().cloned()) {
            Some(gpu) => gpu,
            None => {
                let opened = Gpu::emulated()?;
                GPU.with(|gpu| gpu.get_or_init(|| opened).clone())
            }
        };
        Device::over_gpu("emulated", gpu)
    }

    fn over_gpu(name: &str, gpu: Arc<Gpu>) -> Result<Device> {
        let pool = Pool::new(gpu.pages()?);
        Ok(Device::with(name, pool, Hardware::Gpu(gpu)))
    }

    /// The same hardware and settings with an empty pool of its own and no limit.
    pub(crate) fn sibling(&self) -> Result<Device> {
        let sibling = match &self.0.hardware {
            _ if self.is_ghost() => self.ghost(),
            Hardware::Gpu(gpu) => Device::over_gpu(&self.0.name, gpu.clone())?,
            Hardware::Cpu | Hardware::GhostGpu(_) => Device::separate_cpu(),
        };
        sibling.0.unordered.store(self.0.unordered.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(sibling)
    }

    /// The ghost of an idle GPU of that model, on any machine.
    pub fn ghost_cuda(profile: Profile) -> Device {
        let pool = Pool::new(GhostPages::unbounded());
        let name = format!("ghost({})", profile.name);
        Device::with(&name, pool, Hardware::GhostGpu(Box::new(profile)))
    }

    /// The first GPU if it can be used, else the CPU.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or_else(|_| Device::cpu())
    }

    /// The GPU that runs the ops; none on the CPU and on ghosts.
    #[doc(hidden)]
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.0.hardware {
            Hardware::Gpu(gpu) => Some(gpu),
            Hardware::Cpu | Hardware::GhostGpu(_) => None,
        }
    }

    /// The model of the GPU, also on its ghost; none on the CPU.
    pub fn profile(&self) -> Option<&Profile> {
        match &self.0.hardware {
            Hardware::Cpu => None,
            Hardware::Gpu(gpu) => Some(gpu.profile()),
            Hardware::GhostGpu(profile) => Some(profile),
        }
    }

    /// Whether the host can read and write the memory of this device.
    pub fn is_host(&self) -> bool {
        matches!(self.0.hardware, Hardware::Cpu)
    }

    /// The device whose memory the host can read and write and from which this one is fed: itself, or the CPU for a GPU.
    pub fn host(&self) -> Device {
        static GHOST: OnceLock<Device> = OnceLock::new();
        match &self.0.hardware {
            Hardware::Cpu => self.clone(),
            Hardware::Gpu(_) => Device::cpu(),
            Hardware::GhostGpu(_) => GHOST.get_or_init(Device::ghost_cpu).clone(),
        }
    }

    /// Whether products and convolutions of float32 on this GPU round their operands to TF32, 10 bits after the point
    /// instead of 23, which is several times as fast. Off unless it is set; without meaning on the CPU and on ghosts.
    #[doc(alias = "allow_tf32")]
    pub fn set_tf32(&self, is_on: bool) {
        if let Some(gpu) = self.gpu() {
            gpu.set_tf32(is_on);
        }
    }

    /// Whether products of f32 may be computed with TF32.
    pub(crate) fn allows_tf32(&self) -> bool {
        self.gpu().is_some_and(|gpu| gpu.tf32())
    }

    /// Whether a run on this device has the same bits every time, which it has unless this says otherwise.
    ///
    /// On a GPU some gradients come faster when threads add to a sum in whatever order they arrive: those of attention in 16
    /// bits, rows that are added up by index in float32 and float64 (the gradient of an embedding), and convolutions, for
    /// which cuDNN may then choose among all its engines. Their last bits differ from run to run, so losses do, too. What is
    /// saved for backward stays exact: only backward itself, which is never recomputed, takes such variants, so that values
    /// that are recomputed under a limit are what they were. Scratch memory differs; a ghost inherits the setting and
    /// predicts it. It says nothing on the CPU, where everything has one order. To be set between steps.
    #[doc(alias("use_deterministic_algorithms", "enable_op_determinism"))]
    pub fn set_deterministic(&self, is_on: bool) {
        self.0.unordered.store(!is_on, Ordering::Relaxed);
    }

    /// Whether a run has the same bits every time: see [`Device::set_deterministic`]. Always true on the CPU.
    pub fn is_deterministic(&self) -> bool {
        self.is_host() || !self.0.unordered.load(Ordering::Relaxed)
    }

    /// Waits until all work on this device is done.
    ///
    /// # Errors
    /// What went wrong on it meanwhile; a value that a kernel has refused, if this thread called the op.
    #[doc(alias = "block_until_ready")]
    pub fn synchronize(&self) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        gpu.synchronize()?;
        fault::look(self)
    }

    /// This device, without keeping its pool alive.
    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    /// The ghost of this device as it is now: its pool starts as a copy of this one's map, so that it predicts
    /// both the bytes in use and the bytes committed. It has more addresses than this one, so that it also tells what a step
    /// would need that is far too large.
    #[doc(alias("meta", "fake"))]
    pub fn ghost(&self) -> Device {
        let hardware =
            self.profile().map_or(Hardware::Cpu, |profile| Hardware::GhostGpu(Box::new(profile.clone())));
        let name = format!("ghost({})", self.0.name);
        let mut ghost = Device::inner(&name, self.0.pool.unbounded_ghost(), hardware);
        ghost.plan_sets = self.0.plan_sets.clone().or(ghost.plan_sets);
        let ghost = Device(Arc::new(ghost));
        let offload_store = self.offload_store().map(|offload_store| Arc::new(offload_store.ghost()));
        ghost.set_deterministic(self.is_deterministic());
        ghost.0.graphs.take_over(&self.0.graphs);
        *ghost.0.offload_store.lock().unwrap_or_else(PoisonError::into_inner) = offload_store;
        ghost
    }

    /// The ghost on which tensors are described that this device would hold: see [`Tensor::spec`](crate::Tensor::spec).
    pub(crate) fn specs(&self) -> Device {
        let make = || {
            let hardware =
                self.profile().map_or(Hardware::Cpu, |profile| Hardware::GhostGpu(Box::new(profile.clone())));
            let pool = Pool::new(GhostPages::unbounded());
            let mut specs = Device::inner(&format!("spec({})", self.0.name), pool, hardware);
            specs.described = Some(WeakDevice(Arc::downgrade(&self.0)));
            Device(Arc::new(specs))
        };
        self.0.specs.get_or_init(make).clone()
    }

    /// The device that the tensors of this ghost are described for, if that is what it is for.
    pub(crate) fn described(&self) -> Option<Device> {
        self.0.described.as_ref().and_then(|described| described.0.upgrade()).map(Device)
    }

    /// Says that the tensors of this ghost are those of a graph.
    pub(crate) fn set_symbolic(&self) {
        self.0.is_symbolic.store(true, Ordering::Relaxed);
    }

    /// Whether its tensors are those of a graph.
    #[inline]
    pub(crate) fn is_symbolic(&self) -> bool {
        self.0.is_symbolic.load(Ordering::Relaxed)
    }

    /// Whether this device has shapes but no values.
    pub fn is_ghost(&self) -> bool {
        self.0.pool.is_ghost()
    }

    /// The name, such as `cpu` or `ghost(cpu)`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many devices the process had made before this one.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// The names of two devices for an error; of devices with the same name also the number, which `{:?}` shows, too.
    pub(crate) fn names_apart(&self, other: &Device) -> [String; 2] {
        let (one, two) = (&self.0, &other.0);
        match one.name == two.name {
            true => [one, two]
                .map(|device| format!("{} (number {}, with a pool of its own)", device.name, device.number)),
            false => [one, two].map(|device| device.name.clone()),
        }
    }

    /// The pool of memory.
    #[doc(hidden)]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// A block of the pool. Copies beside the work may still be about its memory; later work on the device waits for those.
    pub(crate) fn acquire(&self, bytes: usize, label: Label) -> Result<Block> {
        self.acquire_for(bytes, label, || None)
    }

    /// The same for a program that runs: what it is called, and which blocks it has, if memory is full.
    pub(crate) fn acquire_for(
        &self,
        bytes: usize,
        label: Label,
        running: impl FnOnce() -> Option<(String, Vec<u64>)>,
    ) -> Result<Block> {
        let block = self.0.pool.acquire(bytes, label).map_err(|full| {
            if self.0.pool.has_sink() {
                self.tell_holders(running());
            }
            // Memory may be full because a value could not be offloaded; then that is the error.
            self.0.evictor.take_failure().unwrap_or_else(|| full.into())
        })?;
        if let Hardware::Gpu(gpu) = &self.0.hardware {
            gpu.reuse(&block)?;
        }
        Ok(block)
    }

    /// This device with a limit on the bytes that its pool may commit.
    ///
    /// # Errors
    /// More is in use already; the error lists the holders and the old limit stays.
    #[doc(alias = "set_per_process_memory_fraction")]
    pub fn limit(self, limit: Bytes) -> Result<Device> {
        self.set_limit(Some(limit))?;
        Ok(self)
    }

    /// Changes or lifts the limit at run time.
    ///
    /// # Errors
    /// More is in use already; the error lists the holders and the old limit stays.
    #[doc(alias = "set_per_process_memory_fraction")]
    pub fn set_limit(&self, limit: Option<Bytes>) -> Result<()> {
        self.0.pool.set_limit(limit)?;
        self.set_graph_room()
    }

    /// The bytes of tensors over memory that somebody else has (see [`Tensor::from_foreign`](crate::Tensor::from_foreign)): they are
    /// in no pool and under no limit.
    pub fn foreign_bytes(&self) -> Bytes {
        Bytes::new(self.0.foreign_bytes.load(Ordering::Relaxed))
    }

    /// Foreign memory comes or goes.
    pub(crate) fn count_foreign(&self, n_bytes: usize, comes: bool) {
        match comes {
            true => self.0.foreign_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed),
            false => self.0.foreign_bytes.fetch_sub(n_bytes as u64, Ordering::Relaxed),
        };
    }

    /// The numbers of the pool.
    #[doc(alias("memory_stats", "memory_allocated", "max_memory_allocated", "get_memory_info"))]
    pub fn stats(&self) -> Stats {
        self.0.pool.stats()
    }

    /// The GPU's memory as its driver counts it; nothing on the CPU and on ghosts.
    ///
    /// # Errors
    /// What the driver says.
    pub fn driver_memory(&self) -> Result<Option<DriverMemory>> {
        let Some(gpu) = self.gpu() else { return Ok(None) };
        let memory = gpu.memory()?;
        let (total, used) = (memory.total, memory.total - memory.free);
        Ok(Some(DriverMemory {
            total,
            used,
            committed: self.stats().committed,
            graphs: self.graph_bytes(),
            communicators: self.gpu().map_or(0, |gpu| gpu.communicator_bytes()),
        }))
    }

    /// Every live block.
    #[doc(alias = "memory_snapshot")]
    pub fn snapshot(&self) -> Snapshot {
        self.0.pool.snapshot()
    }

    /// Gives free memory back to the system; returns how many bytes that was.
    #[doc(alias = "empty_cache")]
    pub fn trim(&self) -> Bytes {
        Bytes::new(self.0.pool.trim())
    }

    /// The ops that were recomputed on this device since it was made, to keep a limit.
    pub fn recomputed(&self) -> Recomputed {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        Recomputed { ops: read(&self.0.n_recomputed), flops: read(&self.0.recomputed_flops) }
    }

    /// Counts on a ghost what a part of a run that is not gone through would have done to keep the limit.
    #[doc(hidden)]
    pub fn count_skipped(&self, recomputed: Recomputed, offloaded: Bytes) {
        self.0.n_recomputed.fetch_add(recomputed.ops, Ordering::Relaxed);
        self.0.recomputed_flops.fetch_add(recomputed.flops, Ordering::Relaxed);
        self.count_offloaded(offloaded.get());
    }

    /// The plans of a step on this device. A ghost remembers those of the last steps, for dry runs under other limits.
    pub(crate) fn lazy_plan_set(&self, trace: &Trace, natural: Peaks) -> LazyPlanSet {
        match &self.0.plan_sets {
            None => LazyPlanSet::new(trace, natural),
            Some(cache) => cache.lock().unwrap_or_else(PoisonError::into_inner).find(trace, natural),
        }
    }

    /// An op is recomputed.
    pub(crate) fn count_recompute(&self, flops: u64) {
        self.0.n_recomputed.fetch_add(1, Ordering::Relaxed);
        self.0.recomputed_flops.fetch_add(flops, Ordering::Relaxed);
    }

    /// Compares, from the next step on, each value that is recomputed with what it first was, for debugging: a difference
    /// is an error that names the op. It is on from the beginning with `PLIMSOLL_VERIFY=1`.
    pub fn set_verify(&self, is_on: bool) {
        self.0.verifies.store(is_on, Ordering::Relaxed);
    }

    /// Whether values that are recomputed are compared.
    pub(crate) fn verifies(&self) -> bool {
        self.0.verifies.load(Ordering::Relaxed)
    }

    /// The bytes that were offloaded from this device's memory since it was made, to keep a limit.
    pub fn offloaded(&self) -> Bytes {
        Bytes::new(self.0.offloaded_bytes.load(Ordering::Relaxed))
    }

    /// A value was offloaded.
    pub(crate) fn count_offloaded(&self, n_bytes: u64) {
        self.0.offloaded_bytes.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// Says where values that backward will read may be offloaded when a limit asks for it; nowhere unless it is said. What was
    /// offloaded before stays where it is.
    ///
    /// # Errors
    /// A folder that cannot be written to or lies in memory; an offload that is not for this kind of device.
    pub fn set_offload(&self, offload: Option<&Offload>) -> Result<()> {
        let offload_store = offload.map(|offload| OffloadStore::open(offload, self)).transpose()?;
        *self.0.offload_store.lock().unwrap_or_else(PoisonError::into_inner) = offload_store.map(Arc::new);
        Ok(())
    }

    /// Whether values may be offloaded from this device's memory.
    pub fn can_offload(&self) -> bool {
        self.offload_store().is_some()
    }

    /// The bytes that move in a second between this device and where values may be offloaded to, by formula; none where they may not.
    pub fn offload_rate(&self) -> Option<u64> {
        self.offload_store().map(|store| store.known().bytes_per_us.saturating_mul(1_000_000))
    }

    /// Where offloaded values wait.
    pub(crate) fn offload_store(&self) -> Option<Arc<OffloadStore>> {
        self.0.offload_store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Evicts values of a step's log, on behalf of the thread that calls this, when this device's memory is full.
    pub(crate) fn evict_from(&self, step_log: Weak<dyn Evict>) {
        if self.0.evictor.watch(step_log) {
            self.0.pool.set_reclaim(Some(self.0.evictor.clone()));
        }
    }

    /// Who holds the bytes in use; the rows add up.
    #[doc(alias = "memory_summary")]
    pub fn report(&self) -> Report {
        Report::of(self)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, number {})", self.0.name, self.0.number)
    }
}

/// What a device's name says that it is.
enum Kind {
    Cpu,
    Cuda(usize),
}

impl Kind {
    fn parse(name: &str) -> Result<Kind> {
        let plain = name.trim_start_matches('/').to_ascii_lowercase();
        match plain.split_once(':').unwrap_or((&plain, "0")) {
            ("cpu", "0") => Ok(Kind::Cpu),
            ("cuda" | "gpu", number) if number.parse::<usize>().is_ok() => {
                Ok(Kind::Cuda(number.parse().unwrap_or_default()))
            }
            _ => Err(Error::argument(
                "device",
                format!("{name:?} means no device; there are `cpu` and `cuda:N`"),
            )),
        }
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    use plimsoll_cuda::Pinned;
    use plimsoll_memory::{Owner, Site};

    use super::*;

    /// On the emulated GPU a copy comes as late as it may, so that a block handed out without waiting would overtake it.
    #[test]
    fn a_block_is_handed_out_after_the_copies_that_are_about_its_memory() -> Result<()> {
        let device = Device::emulated()?;
        let gpu = device.gpu().expect("it is a GPU");
        let label = Label::new(Owner::Saved, Site::UNKNOWN);
        let pinned = Pinned::new(gpu, None)?;
        let host = pinned.acquire(1000, label)?;
        // SAFETY: the blocks have so many bytes.
        let fill = |block: &Block, byte| unsafe { gpu.fill("test", block.as_ptr(), byte, 1000) };
        let block = device.acquire(1000, label)?;
        fill(&block, 1)?;
        // SAFETY: the block is the device's, and the host waits before it reads.
        let copied = unsafe { gpu.download_async(&block, &host) }?;
        let place = block.as_ptr();
        drop(block);
        let next = device.acquire(1000, label)?;
        assert_eq!(next.as_ptr(), place);
        fill(&next, 2)?;
        gpu.wait_on_host(&copied)?;
        // SAFETY: the copy has written all bytes.
        assert!(unsafe { std::slice::from_raw_parts(host.as_ptr(), 1000) }.iter().all(|&byte| byte == 1));
        Ok(())
    }
}
