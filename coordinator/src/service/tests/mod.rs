mod joining;
mod leases;
mod lifecycle;
