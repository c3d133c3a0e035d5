//! What C's pointers become: values, references and slices, each by the promise that the header asks of the caller.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use crate::failure::{Failure, Result};

/// As a text's length: its end is where the NUL is.
const NUL_TERMINATED: usize = usize::MAX;

/// Where C wants a result.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// What C must not leave out.
pub(crate) fn given<T>(name: &'static str, pointer: Option<T>) -> Result<T> {
    pointer.ok_or(Failure::Null(name))
}

/// Writes a result that C may not want.
pub(crate) fn put<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

/// Gives C a new object, which it frees with [`free`].
pub(crate) fn put_new<T>(out: Out<'_, *mut T>, make: impl FnOnce() -> Result<T>) -> Result<()> {
    let out = given("out", out)?;
    out.write(std::ptr::null_mut()); // so that a caller who looks at no status frees nothing
    out.write(Box::into_raw(Box::new(make()?)));
    Ok(())
}

/// Frees what [`put_new`] gave; NULL is nothing.
///
/// # Safety
/// `pointer` is NULL or from [`put_new`], nobody uses it now, and nobody will.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: by the promise above it is a box of ours, and this is its only use from now on.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// `len` items; NULL if there are none.
///
/// # Safety
/// `pointer` is NULL, or points to `len` items that nobody changes during `'a`.
pub(crate) unsafe fn items<'a, T>(name: &'static str, pointer: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_array(name, pointer, len)?;
    // SAFETY: by the promise above; it is not NULL, aligned, and no longer than memory can be.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Room for `len` items; NULL if there is none.
///
/// # Safety
/// `pointer` is NULL, or points to room for `len` items that nobody else looks at during `'a`.
pub(crate) unsafe fn room<'a, T>(
    name: &'static str,
    pointer: *mut T,
    len: usize,
) -> Result<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_array(name, pointer, len)?;
    // SAFETY: by the promise above; it is not NULL, aligned, and no longer than memory can be. It need hold no values.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

fn check_array<T>(name: &'static str, pointer: *const T, len: usize) -> Result<()> {
    if pointer.is_null() {
        return Err(Failure::Null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(name, format!("a multiple of {}", align_of::<T>()), pointer.addr()));
    }
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::argument(name, "a number of items that memory can hold", len)),
    }
}

/// A text of `len` bytes, or up to its NUL.
///
/// # Safety
/// As [`items`], or as [`text`] if `len` is `SMOLRUN_NUL_TERMINATED`.
pub(crate) unsafe fn text_of<'a>(name: &'static str, pointer: *const c_char, len: usize) -> Result<&'a str> {
    if len == NUL_TERMINATED {
        // SAFETY: the promise is the same.
        return unsafe { text(name, pointer) };
    }
    // SAFETY: the promise is the same.
    utf8(name, unsafe { items(name, pointer.cast(), len)? })
}

/// A text that ends with NUL.
///
/// # Safety
/// `pointer` is NULL, or points to bytes up to a NUL that nobody changes during `'a`.
pub(crate) unsafe fn text<'a>(name: &'static str, pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the promise is the same.
    utf8(name, unsafe { bytes(name, pointer)? })
}

/// As [`text`], but NULL is none.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    name: &'static str,
    pointer: *const c_char,
) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the promise is the same.
    unsafe { text(name, pointer) }.map(Some)
}

/// A path that ends with NUL: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    #[cfg(unix)]
    {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: the promise is the same.
        Ok(Path::new(OsStr::from_bytes(unsafe { bytes("path", pointer)? })))
    }
    #[cfg(not(unix))]
    {
        // SAFETY: the promise is the same.
        Ok(Path::new(unsafe { text("path", pointer)? }))
    }
}

/// The bytes before a NUL.
///
/// # Safety
/// As [`text`].
unsafe fn bytes<'a>(name: &'static str, pointer: *const c_char) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: by the promise above it points to bytes up to a NUL.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

fn utf8<'a>(name: &'static str, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| Failure::Utf8 { name, at: error.valid_up_to() })
}

/// Copies `values` to `room` if they all fit. `len` says how many there are in any case.
pub(crate) fn fill<T: Copy>(
    name: &'static str,
    values: &[T],
    room: &mut [MaybeUninit<T>],
    len: Out<'_, usize>,
) -> Result<()> {
    put(len, values.len());
    let (needed, capacity) = (values.len(), room.len());
    let room = room.get_mut(..needed).ok_or(Failure::TooSmall { name, needed, capacity })?;
    room.write_copy_of_slice(values);
    Ok(())
}

/// Copies a text and a NUL to `room`. `len` says how many bytes the text has, without the NUL.
pub(crate) fn fill_text(
    name: &'static str,
    text: &str,
    room: &mut [MaybeUninit<u8>],
    len: Out<'_, usize>,
) -> Result<()> {
    put(len, text.len());
    let terminated = [text.as_bytes(), b"\0"].concat();
    fill(name, &terminated, room, None)
}

/// A struct of the header whose first field is its size, by which older and newer programs can share a library.
///
/// # Safety
/// It is `repr(C)`, begins with its size as `usize`, and any bytes are a value of it.
pub(crate) unsafe trait Struct: Copy {
    /// A value of each field where the caller says nothing.
    fn defaults() -> Self;
}

/// Largest struct that a caller may have: far more than there will ever be.
const MOST_BYTES: usize = 1 << 16;

/// The caller's options; the defaults if there are none, and for each field that the caller does not know yet. A field
/// that this library does not know yet must be zero.
///
/// # Safety
/// `pointer` is NULL or points to a `usize` and as many bytes as it says, itself included.
pub(crate) unsafe fn options<T: Struct>(name: &'static str, pointer: *const T) -> Result<T> {
    let mut value = T::defaults();
    if pointer.is_null() {
        return Ok(value);
    }
    // SAFETY: the promise is the same.
    let size = unsafe { size_of_struct(name, pointer)? };
    // SAFETY: by the promise above there are so many bytes; padding of C is zero or not, but memory that C has.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<MaybeUninit<u8>>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    // SAFETY: behind what this library knows there is no padding that it knows of: a caller's own fields, initialized.
    if unknown.iter().any(|byte| unsafe { byte.assume_init() } != 0) {
        let expected = format!("zeroes after the {} bytes that this library knows", size_of::<T>());
        return Err(Failure::argument(name, expected, "an option of a newer one"));
    }
    // SAFETY: `value` has at least as many bytes as `known`, and any bytes are a value of it.
    unsafe {
        std::ptr::copy_nonoverlapping(
            known.as_ptr(),
            (&raw mut value).cast::<MaybeUninit<u8>>(),
            known.len(),
        );
    }
    Ok(value)
}

/// Writes `value` to the caller's struct of `size` bytes, as much as it has room for, with its size. What this library
/// does not know is zero.
///
/// # Safety
/// `pointer` is NULL or points to room for `size` bytes, which nobody else looks at.
pub(crate) unsafe fn put_struct<T: Struct>(
    name: &'static str,
    value: T,
    pointer: *mut T,
    size: usize,
) -> Result<()> {
    check_struct(name, pointer, size)?;
    let known = size.min(size_of::<T>());
    // SAFETY: by the promise above there is room for `size` bytes, of which `known` are no more than `value` has; the
    // first ones are its size, and `check_struct` has seen to it that there is room for that.
    unsafe {
        pointer.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), pointer.cast(), known);
        pointer.cast::<usize>().write(size);
    }
    Ok(())
}

/// Writes the defaults to the caller's struct of `size` bytes, as [`put_struct`] does.
///
/// # Safety
/// As [`put_struct`].
pub(crate) unsafe fn put_defaults<T: Struct>(name: &'static str, pointer: *mut T, size: usize) -> Result<()> {
    // SAFETY: the promise is the same.
    unsafe { put_struct(name, T::defaults(), pointer, size) }
}

/// How many bytes the caller's struct says that it has.
///
/// # Safety
/// `pointer` is NULL or points to a `usize`.
pub(crate) unsafe fn size_of_struct<T>(name: &'static str, pointer: *const T) -> Result<usize> {
    check_struct(name, pointer, size_of::<usize>())?;
    // SAFETY: it is not NULL and aligned, and by the promise above there is a `usize`.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_struct(name, pointer, size)?;
    Ok(size)
}

fn check_struct<T>(name: &'static str, pointer: *const T, size: usize) -> Result<()> {
    check_array(name, pointer, 1)?;
    if !(size_of::<usize>()..=MOST_BYTES).contains(&size) || !size.is_multiple_of(align_of::<usize>()) {
        return Err(Failure::argument(name, "its size in bytes as the first field", size));
    }
    Ok(())
}

/// A struct for C to read, of numbers and of pointers into memory that lies beside it.
#[derive(Default)]
pub(crate) struct View<T>(T);

// SAFETY: nothing in this crate reads through the pointers, and the memory that they point to goes to another thread with
// them, as part of the same handle.
unsafe impl<T: Copy> Send for View<T> {}

impl<T> Deref for View<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for View<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
