//go:build unix

package main

import "syscall"

// A process whose turn it is not is stopped: its timers, sweepers and collector would be measured with the others.
func (p *process) pause()  { _ = p.cmd.Process.Signal(syscall.SIGSTOP) } // one that ended is told by its next call
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
