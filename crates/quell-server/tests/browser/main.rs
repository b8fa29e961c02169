//! The pages in a real browser: Debian's Chromium, without a window and without a network.
//!
//! `page` opens pages and collects what the browser complains about, `element` finds, clicks and types,
//! `axe` judges accessibility, `scene` starts a server. The other modules are the tests. A test fails at its
//! end where a page had an error in its console or broke its Content-Security-Policy. Screenshots are left in
//! `target/screenshots`.

#[cfg(test)]
mod axe;
#[cfg(test)]
mod change;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod element;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod live;
#[cfg(test)]
mod login;
#[cfg(test)]
mod page;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod selftest;
#[cfg(test)]
mod world;
