//! The pieces of a range of a [`Buffer`](crate::Buffer), in order, none of them empty.

use std::ptr::NonNull;

use super::SHARED;
use crate::PAGE_SIZE;
use crate::page::Page;

/// Start and length of the next page's piece; `None` once nothing is left.
pub(super) fn next_piece(skip: &mut usize, left: &mut usize) -> Option<(usize, usize)> {
    if *left == 0 {
        return None;
    }
    let start = std::mem::take(skip);
    let len = (*left).min(PAGE_SIZE - start);
    *left -= len;
    Some((start, len))
}

/// Iterator over the writable pieces of a [`Buffer`](crate::Buffer).
#[derive(Debug)]
pub enum SlicesMut<'a> {
    #[doc(hidden)]
    Pages { pages: std::slice::IterMut<'a, Page>, skip: usize, left: usize },
    #[doc(hidden)]
    Block(Option<&'a mut [u8]>),
}

impl<'a> Iterator for SlicesMut<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        match self {
            SlicesMut::Block(block) => block.take(),
            SlicesMut::Pages { pages, skip, left } => {
                let (start, len) = next_piece(skip, left)?;
                match pages.next()?.bytes_mut() {
                    Some(bytes) => Some(&mut bytes[start..start + len]),
                    None => panic!("{SHARED}"),
                }
            }
        }
    }
}

/// Iterator over the pieces of a [`Buffer`](crate::Buffer).
#[derive(Clone, Debug)]
pub enum Slices<'a> {
    #[doc(hidden)]
    Pages { pages: std::slice::Iter<'a, Page>, skip: usize, left: usize },
    #[doc(hidden)]
    Block(Option<&'a [u8]>),
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Slices::Block(block) => block.take(),
            Slices::Pages { pages, skip, left } => {
                let (start, len) = next_piece(skip, left)?;
                pages.next().map(|page| &page.bytes()[start..start + len])
            }
        }
    }
}

/// Iterator over the addresses of the pieces of a [`Buffer`](crate::Buffer).
#[derive(Clone, Debug)]
pub enum RawParts<'a> {
    #[doc(hidden)]
    Pages { pages: std::slice::Iter<'a, Page>, skip: usize, left: usize },
    #[doc(hidden)]
    Block(NonNull<u8>, usize),
}

impl Iterator for RawParts<'_> {
    type Item = (*const u8, usize);

    fn next(&mut self) -> Option<(*const u8, usize)> {
        match self {
            RawParts::Block(_, 0) => None,
            RawParts::Block(start, len) => Some((start.as_ptr().cast_const(), std::mem::take(len))),
            RawParts::Pages { pages, skip, left } => {
                let (start, len) = next_piece(skip, left)?;
                // SAFETY: `start` is below the page size.
                pages.next().map(|page| (unsafe { page.as_ptr().add(start) }.as_ptr().cast_const(), len))
            }
        }
    }
}
