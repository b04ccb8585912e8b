//! Result files and what is made of them. Everything here is a function of files: it measures
//! nothing and asks nobody.

pub mod schema;
