//go:build !unix

package bench_test

import "time"

// cpuTime is not known here; what is made of it is 0.
func cpuTime() time.Duration { return 0 }
