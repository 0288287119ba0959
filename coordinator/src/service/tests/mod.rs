mod audit;
mod draining;
mod joining;
mod leases;
mod lifecycle;
