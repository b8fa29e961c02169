-- R42: the trace contexts of a job's first triggers, a line for each. Null where none has one.
alter table quell_job add column traces text;
