//go:build !darwin && !linux

package testserver

// lock is not needed where there is nothing to install with.
func lock() (unlock func(), err error) { return func() {}, nil }
