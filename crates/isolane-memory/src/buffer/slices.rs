//! Iterators over the slices of a range of a [`Buffer`](crate::Buffer), in order and not empty. Adjacent pages
//! are one slice.

use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::ptr::NonNull;

use super::SHARED;
use crate::page::Page;
use crate::page_run::first_run;

/// Iterator over the writable slices of a [`Buffer`](crate::Buffer).
#[derive(Debug)]
pub enum SlicesMut<'a> {
    #[doc(hidden)]
    Pages { pages: &'a mut [Page], skip: usize, left: usize },
    #[doc(hidden)]
    Block(Option<&'a mut [u8]>),
}

impl<'a> Iterator for SlicesMut<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        match self {
            SlicesMut::Block(block) => block.take(),
            SlicesMut::Pages { pages, skip, left } => {
                let (run, count) = first_run(pages, skip, left)?;
                let (taken, tail) = mem::take(pages).split_at_mut(count);
                *pages = tail;
                assert!(taken.iter().all(Page::is_unique), "{SHARED}");
                // SAFETY: these pages have no other references, and are in no other slice.
                Some(unsafe { run.bytes_mut() })
            }
        }
    }
}

/// Iterator over the slices of a [`Buffer`](crate::Buffer).
#[derive(Clone, Debug)]
pub enum Slices<'a> {
    #[doc(hidden)]
    Pages { pages: &'a [Page], skip: usize, left: usize },
    #[doc(hidden)]
    Block(Option<&'a [u8]>),
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Slices::Block(block) => block.take(),
            Slices::Pages { pages, skip, left } => {
                let (run, count) = first_run(pages, skip, left)?;
                *pages = &pages[count..];
                // SAFETY: the pages are borrowed, and writers need an exclusive borrow.
                Some(unsafe { run.bytes() })
            }
        }
    }
}

/// Iterator over the slices of a [`Buffer`](crate::Buffer) for the kernel, each with its length, because
/// `IoSlice::len` forms a reference to the bytes.
#[derive(Debug)]
pub enum IoSlices<'a> {
    #[doc(hidden)]
    Own(Slices<'a>),
    #[doc(hidden)]
    Shared(Option<(IoSlice<'a>, usize)>),
}

impl<'a> Iterator for IoSlices<'a> {
    type Item = (IoSlice<'a>, usize);

    fn next(&mut self) -> Option<(IoSlice<'a>, usize)> {
        match self {
            IoSlices::Own(slices) => slices.next().map(|slice| (IoSlice::new(slice), slice.len())),
            IoSlices::Shared(slice) => slice.take(),
        }
    }
}

/// Iterator over the writable slices of a [`Buffer`](crate::Buffer) for the kernel, each with its length.
#[derive(Debug)]
pub enum IoSlicesMut<'a> {
    #[doc(hidden)]
    Own(SlicesMut<'a>),
    #[doc(hidden)]
    Shared(Option<(IoSliceMut<'a>, usize)>),
}

impl<'a> Iterator for IoSlicesMut<'a> {
    type Item = (IoSliceMut<'a>, usize);

    #[inline]
    fn next(&mut self) -> Option<(IoSliceMut<'a>, usize)> {
        match self {
            IoSlicesMut::Own(slices) => slices.next().map(|slice| {
                let len = slice.len();
                (IoSliceMut::new(slice), len)
            }),
            IoSlicesMut::Shared(slice) => slice.take(),
        }
    }
}

/// Iterator over the addresses of the slices of a [`Buffer`](crate::Buffer).
#[derive(Clone, Debug)]
pub enum RawParts<'a> {
    #[doc(hidden)]
    Pages { pages: &'a [Page], skip: usize, left: usize },
    #[doc(hidden)]
    Block(NonNull<u8>, usize),
}

impl Iterator for RawParts<'_> {
    type Item = (*const u8, usize);

    fn next(&mut self) -> Option<(*const u8, usize)> {
        match self {
            RawParts::Block(_, 0) => None,
            RawParts::Block(start, len) => Some((start.as_ptr().cast_const(), mem::take(len))),
            RawParts::Pages { pages, skip, left } => {
                let (run, count) = first_run(pages, skip, left)?;
                *pages = &pages[count..];
                Some(run.raw())
            }
        }
    }
}
