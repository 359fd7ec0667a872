//! The memory that collectives read and write, as the bytes that it is: the host's, or a GPU's.
//!
//! What is on a GPU stays there as long as it can. Ranks of one process that are on the same GPU copy from pool to pool
//! ([`DeviceBytes::lend`]); whatever goes further passes through the host, a message at a time. Beside copies there are the two
//! things that collectives do with numbers: adding them up, and rounding them to 16 bits.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use half::{bf16, f16};
use plimsoll_cuda::{Gpu, Grid, NcclCommunicator, Template};
use plimsoll_tensor::op::{Operand, Run};
use plimsoll_tensor::{DType, Device, Error, Piece, Result};

/// The kernels: `to[at]` becomes what an expression makes of it and of `from[at]`.
static TEMPLATE: Template = Template { name: "message", text: include_str!("message.cu") };
/// The threads of a block of them.
const THREADS: u32 = 256;

/// Bytes of a device's memory that nobody writes to meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBytes<'a> {
    start: *const u8,
    n_bytes: usize,
    /// The GPU that has them; none if it is the host.
    gpu: Option<&'a Arc<Gpu>>,
    borrowed: PhantomData<&'a [u8]>,
}

/// Bytes of a device's memory that are nobody else's meanwhile.
#[derive(Debug)]
pub struct DeviceBytesMut<'a> {
    start: *mut u8,
    n_bytes: usize,
    gpu: Option<&'a Arc<Gpu>>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a [u8]> for DeviceBytes<'a> {
    fn from(bytes: &'a [u8]) -> DeviceBytes<'a> {
        DeviceBytes { start: bytes.as_ptr(), n_bytes: bytes.len(), gpu: None, borrowed: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for DeviceBytesMut<'a> {
    fn from(bytes: &'a mut [u8]) -> DeviceBytesMut<'a> {
        DeviceBytesMut { start: bytes.as_mut_ptr(), n_bytes: bytes.len(), gpu: None, borrowed: PhantomData }
    }
}

impl<'a> DeviceBytes<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n_bytes == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// A range that goes beyond them.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> DeviceBytes<'a> {
        assert!(range.start <= range.end && range.end <= self.n_bytes, "{range:?} of {} bytes", self.n_bytes);
        DeviceBytes { start: self.start.wrapping_add(range.start), n_bytes: range.len(), ..*self }
    }

    /// The bytes, if they are the host's.
    pub fn on_host(&self) -> Option<&'a [u8]> {
        match (self.gpu, self.n_bytes) {
            (Some(_), _) => None,
            (None, 0) => Some(&[]),
            // SAFETY: they are as many, borrowed for so long, and nobody writes to them meanwhile.
            (None, n_bytes) => Some(unsafe { std::slice::from_raw_parts(self.start, n_bytes) }),
        }
    }

    /// The bytes in the host's memory, copied there if they are a GPU's.
    ///
    /// # Errors
    /// Those of `f`; what the driver says; host memory that is full.
    pub fn with_host<R>(&self, f: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        if let Some(bytes) = self.on_host() {
            return f(bytes);
        }
        let mut copy = staging(self.n_bytes)?;
        DeviceBytesMut::from(copy.bytes_mut()).copy_from(*self)?;
        f(copy.bytes())
    }

    /// The GPU that has the bytes, if it is one.
    pub fn gpu(&self) -> Option<&'a Arc<Gpu>> {
        self.gpu
    }

    /// Lends bytes of a GPU to another thread: gives `f` what reads them there, waits until that is dropped, and says whether it
    /// was read. Nothing for bytes of the host.
    pub(crate) fn lend(&self, f: impl FnOnce(LentBytes) -> Result<()>) -> Option<Result<bool>> {
        /// Waits also if `f` panics.
        struct Wait(Arc<Loan>);
        impl Drop for Wait {
            fn drop(&mut self) {
                let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
                while !state.is_over {
                    state = self.0.over.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        let loan = Arc::new(Loan::default());
        let lent = LentBytes {
            gpu: self.gpu?.clone(),
            start: self.start.expose_provenance(),
            n_bytes: self.n_bytes,
            loan: loan.clone(),
        };
        let waiting = Wait(loan.clone());
        let taken = f(lent);
        drop(waiting);
        let was_read = loan.state.lock().unwrap_or_else(PoisonError::into_inner).was_read;
        Some(taken.map(|()| was_read))
    }
}

/// How a loan goes.
#[derive(Debug, Default)]
struct Loan {
    state: Mutex<LoanState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct LoanState {
    was_read: bool,
    is_over: bool,
}

/// Bytes of a GPU that another thread has lent, and waits for.
#[derive(Debug)]
pub(crate) struct LentBytes {
    gpu: Arc<Gpu>,
    start: usize,
    n_bytes: usize,
    loan: Arc<Loan>,
}

impl LentBytes {
    /// The bytes, which are read now.
    pub fn read(&self) -> DeviceBytes<'_> {
        self.loan.state.lock().unwrap_or_else(PoisonError::into_inner).was_read = true;
        let start = ptr::with_exposed_provenance(self.start);
        DeviceBytes { start, n_bytes: self.n_bytes, gpu: Some(&self.gpu), borrowed: PhantomData }
    }
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        self.loan.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.loan.over.notify_all();
    }
}

impl DeviceBytesMut<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n_bytes == 0
    }

    /// The bytes, to be read.
    pub fn as_bytes(&self) -> DeviceBytes<'_> {
        DeviceBytes { start: self.start, n_bytes: self.n_bytes, gpu: self.gpu, borrowed: PhantomData }
    }

    /// Some of them.
    ///
    /// # Panics
    /// A range that goes beyond them.
    pub fn range(&mut self, range: Range<usize>) -> DeviceBytesMut<'_> {
        assert!(range.start <= range.end && range.end <= self.n_bytes, "{range:?} of {} bytes", self.n_bytes);
        let start = self.start.wrapping_add(range.start);
        DeviceBytesMut { start, n_bytes: range.len(), gpu: self.gpu, borrowed: PhantomData }
    }

    /// The bytes, if they are the host's.
    pub fn on_host(&mut self) -> Option<&mut [u8]> {
        match (self.gpu, self.n_bytes) {
            (Some(_), _) => None,
            (None, 0) => Some(&mut []),
            // SAFETY: they are as many, and nobody else's while they are borrowed.
            (None, n_bytes) => Some(unsafe { std::slice::from_raw_parts_mut(self.start, n_bytes) }),
        }
    }

    /// Bytes in the host's memory for `f` to write, which become these.
    ///
    /// # Errors
    /// Those of `f`; what the driver says; host memory that is full.
    pub fn with_host(&mut self, f: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        if let Some(bytes) = self.on_host() {
            return f(bytes);
        }
        let mut copy = staging(self.n_bytes)?;
        f(copy.bytes_mut())?;
        self.copy_from(copy.bytes().into())
    }

    /// The GPU that has the bytes, if it is one.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu
    }

    /// Makes these bytes those of `from`, which are as many, wherever either are.
    ///
    /// # Errors
    /// Bytes of another number; what the driver says; host memory that is full.
    pub fn copy_from(&mut self, from: DeviceBytes<'_>) -> Result<()> {
        let n_bytes = self.n_bytes;
        self.check_len(from.n_bytes, from.n_bytes)?;
        if n_bytes == 0 {
            return Ok(());
        }
        match (from.gpu, self.gpu) {
            // SAFETY: both are as many bytes of the host, and these are nobody else's, so they do not overlap.
            (None, None) => unsafe { self.start.copy_from_nonoverlapping(from.start, n_bytes) },
            (None, Some(gpu)) => {
                let Some(bytes) = from.on_host() else { unreachable!("they are the host's") };
                // SAFETY: these are as many bytes of that GPU; the host's are not needed any more when it returns.
                unsafe { gpu.upload(bytes, self.start) }?;
            }
            // SAFETY: as many bytes of that GPU, and of the host's; they are there when it returns.
            (Some(gpu), None) => unsafe { gpu.download(from.start, self.start, n_bytes) }?,
            // SAFETY: both are as many bytes of that GPU, and these are nobody else's. Whoever gets the memory of either next
            // uses it in the order of the GPU's work.
            (Some(gpu), Some(own)) if Arc::ptr_eq(gpu, own) => unsafe {
                gpu.copy("message", from.start, self.start, n_bytes)?;
            },
            (Some(_), Some(_)) => from.with_host(|bytes| self.copy_from(bytes.into()))?,
        }
        Ok(())
    }

    /// Adds as many numbers of that dtype, float32 or float64, to these, which are on the same device.
    pub(crate) fn add(&mut self, other: DeviceBytes<'_>, dtype: DType) -> Result<()> {
        self.check_len(other.len(), other.len())?;
        let (wide, name) = (dtype == DType::F64, if dtype == DType::F64 { "double" } else { "float" });
        if self.launch(
            other,
            (other.len() / dtype.size(), u64::from(wide)),
            [name, name, "to[at] + from[at]"],
        )? {
            return Ok(());
        }
        let Some((sums, others)) = self.on_host().zip(other.on_host()) else { return Err(apart()) };
        if wide {
            for (sum, other) in sums.as_chunks_mut::<8>().0.iter_mut().zip(others.as_chunks::<8>().0) {
                *sum = (f64::from_ne_bytes(*sum) + f64::from_ne_bytes(*other)).to_ne_bytes();
            }
        } else {
            for (sum, other) in sums.as_chunks_mut::<4>().0.iter_mut().zip(others.as_chunks::<4>().0) {
                *sum = (f32::from_ne_bytes(*sum) + f32::from_ne_bytes(*other)).to_ne_bytes();
            }
        }
        Ok(())
    }

    /// Makes these elements of one dtype from as many of another on the same device: the same bytes, or float32 rounded to 16 bits
    /// as optimizers do.
    pub(crate) fn convert_from(
        &mut self,
        dtype: DType,
        from: DeviceBytes<'_>,
        from_dtype: DType,
    ) -> Result<()> {
        fn narrow(from: &[u8], to: &mut [u8], rounded: impl Fn(f32) -> [u8; 2]) {
            for (from, to) in from.as_chunks::<4>().0.iter().zip(to.as_chunks_mut::<2>().0) {
                *to = rounded(f32::from_ne_bytes(*from));
            }
        }
        let name = match dtype {
            DType::F16 if from_dtype == DType::F32 => "f16",
            DType::BF16 if from_dtype == DType::F32 => "bf16",
            _ => return self.copy_from(from),
        };
        self.check_len(from.len() / 2, from.len())?;
        let variant = 2 + u64::from(dtype == DType::BF16);
        if self.launch(from, (from.len() / 4, variant), [name, "float", "narrow<T>(from[at])"])? {
            return Ok(());
        }
        let Some((to, from)) = self.on_host().zip(from.on_host()) else { return Err(apart()) };
        match dtype {
            DType::F16 => narrow(from, to, |x| f16::from_f32(x).to_ne_bytes()),
            _ => narrow(from, to, |x| bf16::from_f32(x).to_ne_bytes()),
        }
        Ok(())
    }

    /// Refuses bytes that do not become as many as these.
    fn check_len(&self, becoming: usize, from: usize) -> Result<()> {
        match becoming == self.n_bytes {
            true => Ok(()),
            false => Err(Error::argument("message", format!("{from} bytes do not become {}", self.n_bytes))),
        }
    }

    /// Starts a kernel over `n` elements, if both are of one GPU. `types` are those of `to` and `from`, and what becomes of them.
    fn launch(
        &mut self,
        from: DeviceBytes<'_>,
        (n, variant): (usize, u64),
        types: [&str; 3],
    ) -> Result<bool> {
        let Some(gpu) = self.gpu.filter(|gpu| from.gpu.is_some_and(|other| Arc::ptr_eq(gpu, other))) else {
            return Ok(false);
        };
        if n == 0 {
            return Ok(true);
        }
        let [to_type, from_type, value] = types;
        let define = || format!("#define T {to_type}\n#define S {from_type}\n#define VALUE {value}\n");
        let kernel = gpu.kernel(&TEMPLATE, "message", variant, define)?;
        let (to, from, n_elems) = (self.start, from.start.cast_mut(), n as u64);
        // SAFETY: the parameters are the kernel's; it reads and writes `n` elements of each, which are there: callers give as many of
        // either. Nobody else has what is written, and whoever gets the memory next uses it in the order of the GPU's work.
        unsafe { gpu.launch(&kernel, Grid::covering(n, THREADS), &[&to, &from, &n_elems]) }?;
        Ok(true)
    }
}

/// Sends bytes, if they are of the communicator's GPU.
pub(crate) fn nccl_send(
    communicator: &NcclCommunicator,
    to: usize,
    bytes: DeviceBytes<'_>,
) -> Option<Result<()>> {
    is_of(bytes.gpu, communicator).then(|| {
        // SAFETY: they are as many bytes of that GPU. Whoever gets the memory next uses it in the order of the GPU's work.
        Ok(unsafe { communicator.send(bytes.start, bytes.n_bytes, to) }?)
    })
}

/// Receives bytes, if they are of the communicator's GPU.
pub(crate) fn nccl_recv(
    communicator: &NcclCommunicator,
    from: usize,
    bytes: &mut DeviceBytesMut<'_>,
) -> Option<Result<()>> {
    is_of(bytes.gpu, communicator).then(|| {
        // SAFETY: as above, and they are nobody else's.
        Ok(unsafe { communicator.recv(bytes.start, bytes.n_bytes, from) }?)
    })
}

/// Gives all ranks the bytes that one of them has, if they are of the communicator's GPU.
pub(crate) fn nccl_broadcast(
    communicator: &NcclCommunicator,
    first: usize,
    bytes: &mut DeviceBytesMut<'_>,
) -> Option<Result<()>> {
    is_of(bytes.gpu, communicator).then(|| {
        // SAFETY: as above.
        Ok(unsafe { communicator.broadcast(bytes.start, bytes.start, bytes.n_bytes, first) }?)
    })
}

fn is_of(gpu: Option<&Arc<Gpu>>, communicator: &NcclCommunicator) -> bool {
    gpu.is_some_and(|gpu| Arc::ptr_eq(gpu, communicator.gpu()))
}

fn apart() -> Error {
    Error::device("message", "numbers that are added up or rounded are on one device")
}

/// Memory of the host for bytes on their way.
fn staging(n_bytes: usize) -> Result<Piece> {
    Piece::acquire(&Device::cpu(), n_bytes, "message")
}

/// The operands of an op, as bytes.
pub(crate) struct OperandBytes<'a> {
    pub inputs: Vec<DeviceBytes<'a>>,
    pub outputs: Vec<DeviceBytesMut<'a>>,
    pub workspace: DeviceBytesMut<'a>,
}

/// The operands of an op whose outputs are memory of their own.
///
/// # Errors
/// Operands that are strided, or of truth values.
pub(crate) fn operands<'a>(run: &'a mut Run<'_>, op: &'static str) -> Result<OperandBytes<'a>> {
    check(run, op)?;
    // Operands without elements may have any address.
    let filled = |operands: &'a [Operand<'a>]| operands.iter().filter(|operand| operand.n_elems() > 0);
    let is_input = |output: &Operand<'_>| filled(run.inputs()).any(|input| input.ptr() == output.ptr());
    if filled(run.outputs()).any(is_input) {
        return Err(Error::argument(op, "an output is written over an input"));
    }
    let gpu = run.device().gpu();
    // SAFETY: `execute` hands out operands of the device that are valid for their layouts, these are contiguous and of numbers
    // (checked), and nothing writes to an input while the op runs.
    let inputs = run.inputs().iter().map(|operand| unsafe { read(operand, gpu) }).collect();
    // SAFETY: outputs are blocks of their own and not inputs (checked), and `run` is borrowed for as long as the bytes live.
    let outputs = run.outputs().iter().map(|operand| unsafe { write(operand, gpu) }).collect();
    Ok(OperandBytes { inputs, outputs, workspace: workspace(run) })
}

/// The operands of an op that updates variables: there are outputs alone, which hold the variables' present values.
///
/// # Errors
/// As [`operands`].
pub(crate) fn variables<'a>(run: &'a mut Run<'_>, op: &'static str) -> Result<OperandBytes<'a>> {
    check(run, op)?;
    let gpu = run.device().gpu();
    let mut outputs = Vec::new();
    for (input, output) in run.inputs().iter().zip(run.outputs()) {
        // SAFETY: an output is the memory of the variable itself, or a block of its own; both are as long as its layout says, of
        // numbers (checked), nobody else's, and taken once, because `run` is borrowed for as long as the bytes live.
        let mut bytes = unsafe { write(output, gpu) };
        if input.ptr() != output.ptr() {
            // SAFETY: then it is not the output's memory, and nothing writes to it while the op runs.
            bytes.copy_from(unsafe { read(input, gpu) })?;
        }
        outputs.push(bytes);
    }
    Ok(OperandBytes { inputs: Vec::new(), outputs, workspace: workspace(run) })
}

fn check(run: &Run<'_>, op: &'static str) -> Result<()> {
    let mut operands = run.inputs().iter().chain(run.outputs());
    match operands.find(|operand| !operand.is_contiguous() || operand.dtype() == DType::Bool) {
        Some(operand) => {
            Err(Error::shape(op, format!("an operand is strided, or no number: {:?}", operand.meta)))
        }
        None => Ok(()),
    }
}

/// The bytes of an operand.
///
/// # Safety
/// The operand is of that GPU, or of the host, contiguous, of numbers, and nobody writes to it while the bytes are borrowed.
unsafe fn read<'a>(operand: &Operand<'_>, gpu: Option<&'a Arc<Gpu>>) -> DeviceBytes<'a> {
    DeviceBytes { start: operand.ptr(), n_bytes: operand.meta.n_bytes(), gpu, borrowed: PhantomData }
}

/// The bytes of an operand, to be written.
///
/// # Safety
/// The operand is of that GPU, or of the host, contiguous, of numbers, and nobody else's while the bytes are borrowed.
unsafe fn write<'a>(operand: &Operand<'_>, gpu: Option<&'a Arc<Gpu>>) -> DeviceBytesMut<'a> {
    DeviceBytesMut { start: operand.ptr(), n_bytes: operand.meta.n_bytes(), gpu, borrowed: PhantomData }
}

/// The scratch memory of a call, which is that call's alone; whoever asks for operands does so once.
fn workspace<'a>(run: &Run<'a>) -> DeviceBytesMut<'a> {
    let (start, n_bytes) = run.workspace();
    DeviceBytesMut { start, n_bytes, gpu: run.device().gpu(), borrowed: PhantomData }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_up_and_rounded() -> Result<()> {
        let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_ne_bytes()).collect() };
        let (mut sum, other) = (bytes(&[1.0, 0.1, -0.0]), bytes(&[2.0, 0.2, -0.0]));
        DeviceBytesMut::from(&mut sum[..]).add(other[..].into(), DType::F32)?;
        assert_eq!(sum, bytes(&[3.0, 0.1 + 0.2, -0.0]));
        let mut rounded = [0; 6];
        DeviceBytesMut::from(&mut rounded[..]).convert_from(DType::BF16, sum[..].into(), DType::F32)?;
        let expected = [3.0, 0.1 + 0.2, -0.0].map(|x| bf16::from_f32(x).to_ne_bytes());
        assert_eq!(rounded, expected.concat()[..]);
        let refused = DeviceBytesMut::from(&mut rounded[..]).copy_from(sum[..].into()).expect_err("12 bytes");
        assert!(refused.to_string().contains("12 bytes do not become 6"), "{refused}");
        Ok(())
    }
}
