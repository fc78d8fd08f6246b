package main

import "syscall"

// dieWithParent has the kernel end a child with its parent, even one that is stopped.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
