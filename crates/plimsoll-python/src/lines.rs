//! The user's line that runs: that of the innermost Python frame outside the package.
//!
//! Python finds the line of a frame by reading the table of its function from the first line on, which takes 1 µs three hundred
//! lines down and 10 µs three thousand lines down: more than a small op. So each thread keeps what it has found, by code object and
//! instruction. Both tables are small and of fixed size; what falls on the place of something else replaces it.

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// How many code objects a thread knows, and how many of their lines.
const N_CODES: usize = 256;
const N_LINES: usize = 1024;

/// The folder of the package, with a separator at its end: frames of files below it are skipped.
static PACKAGE: PyOnceLock<String> = PyOnceLock::new();

/// A code object, held so that no other one can have its address while it is known.
struct Code {
    object: Py<PyAny>,
    number: u64,
    /// Its file; none if that is the package's.
    file: Option<Arc<str>>,
}

/// The line of an instruction of the code object of that number.
#[derive(Clone, Copy, Default)]
struct Line {
    code: u64,
    instruction: i32,
    line: u32,
}

struct Known {
    codes: Vec<Option<Code>>,
    lines: Vec<Line>,
    last_number: u64,
}

thread_local!(static KNOWN: RefCell<Known> = const {
    RefCell::new(Known { codes: Vec::new(), lines: Vec::new(), last_number: 0 })
});

/// A place in a table of so many, which is a power of two, for an address and a number.
fn place(address: usize, number: usize, n: usize) -> usize {
    let mixed = (address >> 4).wrapping_add(number.wrapping_mul(31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) & (n - 1)
}

/// The number and the file of a code object, where this thread knows it.
fn known_file(code: &Bound<'_, PyAny>) -> Option<(u64, Option<Arc<str>>)> {
    KNOWN.with_borrow(|known| {
        let found = known.codes.get(place(code.as_ptr() as usize, 0, N_CODES))?.as_ref()?;
        found.object.is(code).then(|| (found.number, found.file.clone()))
    })
}

/// The number of a code object and its file, which is none if that is the package's.
fn file_of(code: &Bound<'_, PyAny>) -> PyResult<(u64, Option<Arc<str>>)> {
    if let Some(found) = known_file(code) {
        return Ok(found);
    }
    let py = code.py();
    let package = PACKAGE.get(py).map_or("", String::as_str);
    let file: String = code.getattr(intern!(py, "co_filename"))?.extract()?;
    let file = (package.is_empty() || !file.starts_with(package)).then(|| Arc::from(file));
    let (number, replaced) = KNOWN.with_borrow_mut(|known| {
        known.codes.resize_with(N_CODES, || None);
        known.last_number += 1;
        let made = Code { object: code.clone().unbind(), number: known.last_number, file: file.clone() };
        let at = place(code.as_ptr() as usize, 0, N_CODES);
        (made.number, known.codes[at].replace(made))
    });
    // What ends with it may run Python, which may come here again.
    drop(replaced);
    Ok((number, file))
}

/// The line of a frame, whose code object has that number.
fn line_of(frame: &Bound<'_, PyAny>, code: u64) -> PyResult<u32> {
    let py = frame.py();
    let instruction: i32 = frame.getattr(intern!(py, "f_lasti"))?.extract()?;
    let at = place(code as usize, instruction as usize, N_LINES);
    let known = KNOWN.with_borrow(|known| known.lines.get(at).copied());
    if let Some(known) = known.filter(|known| known.code == code && known.instruction == instruction) {
        return Ok(known.line);
    }
    // A frame that has no line says `None`.
    let line: Option<u32> = frame.getattr(intern!(py, "f_lineno"))?.extract()?;
    let found = Line { code, instruction, line: line.unwrap_or(0) };
    KNOWN.with_borrow_mut(|known| {
        known.lines.resize_with(N_LINES, Line::default);
        known.lines[at] = found;
    });
    Ok(found.line)
}

/// File and line of the innermost frame outside the package.
pub fn user_line(py: Python<'_>) -> PyResult<Option<(Arc<str>, u32)>> {
    // SAFETY: the thread is attached; it is lent the frame that runs, or nothing where none does.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    while let Some(current) = frame {
        // SAFETY: it is a frame, which always has a code object, and a new reference to that is given.
        let code = unsafe { Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(current.as_ptr().cast()).cast()) };
        if let (number, Some(file)) = file_of(&code)? {
            return Ok(Some((file, line_of(&current, number)?)));
        }
        frame = Some(current.getattr(intern!(py, "f_back"))?).filter(|back| !back.is_none());
    }
    Ok(None)
}

/// File and line of the innermost frame outside the package, for messages.
#[pyfunction]
fn users_line(py: Python<'_>) -> PyResult<Option<(String, u32)>> {
    Ok(user_line(py)?.map(|(file, line)| (file.to_string(), line)))
}

/// Says which folder is the package's.
#[pyfunction]
fn skip_frames_below(py: Python<'_>, folder: String) {
    // A second import of the package is of the same folder.
    _ = PACKAGE.set(py, folder);
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(users_line, module)?)?;
    module.add_function(wrap_pyfunction!(skip_frames_below, module)?)
}
