//go:build !unix

package main

// Where a process cannot be stopped, the ones whose turn it is not do what little they do unasked.
func (p *process) pause()  {}
func (p *process) resume() {}
