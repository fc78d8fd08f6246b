package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// What the steps take, about, on a machine of two cores: for the estimate that is printed first.

const checkCost = 6 * time.Second

func fillCost(keys int) time.Duration { return time.Duration(keys) * 3 * time.Microsecond }

// settleCost is mostly the collector's, half a microsecond for a record of most rivals, and three blocks.
func settleCost(live int) time.Duration {
	return time.Duration(live)*500*time.Nanosecond + 500*time.Millisecond
}

func freshCost(block time.Duration) time.Duration { return 1200*time.Millisecond + block }

func expiryCost(keys int) time.Duration { return 2*time.Second + 2*fillCost(keys) }

// freshPasses and expiryPasses are fewer than the others, as theirs take seconds and not a fraction of one.
func (r *run) freshPasses() int  { return (r.passes + 1) / 2 }
func (r *run) expiryPasses() int { return (r.passes + 2) / 3 }

// at are the workloads of a growing store, and the multiples of -keys at which they are measured.
var at = map[string][]float64{
	"memory": {1, 5},
	"gc":     {5, 10},
	"growth": {0.01, 0.1, 1, 5, 10},
}

// sizes are the numbers of records at which a growing store is to be looked at, ascending.
func (r *run) sizes() (sizes []int) {
	for _, factor := range at["growth"] {
		live := int(factor * float64(r.keys))
		if live > 0 && (r.wants("memory", live) || r.wants("gc", live) || r.wants("growth", live)) {
			sizes = append(sizes, live)
		}
	}
	return sizes
}

// wants tells whether a growing workload is to be measured at so many records.
func (r *run) wants(workload string, live int) bool {
	for _, factor := range at[workload] {
		if r.workloads[workload] && int(factor*float64(r.keys)) == live {
			return true
		}
	}
	return false
}

// A process that fills its store needs up to so many bytes for a record, and one that is done, with the
// collector's reserve, at most as much.
const processBytes = 1000

func (r *run) growerBytes() int64 {
	sizes := r.sizes()
	if len(sizes) == 0 {
		return 0
	}
	return int64(sizes[len(sizes)-1]) * processBytes
}

// checkMemory says when the machine has not the memory that the run needs.
func (r *run) checkMemory() error {
	need := r.growerBytes()
	if len(r.steadySteps()) > 0 {
		need = max(need, int64(len(r.rivals))*int64(r.keys)*processBytes)
	}
	if free := available(); need > free {
		return fmt.Errorf("the run needs up to %.1f GiB of memory, and %.1f GiB are free: choose fewer -keys (now %d), -rivals or -workloads",
			float64(need)/(1<<30), float64(free)/(1<<30), r.keys)
	}
	return nil
}

// available is the memory that can be had, in bytes; a large number where the kernel does not tell.
func available() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 60
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 1 << 60
}

// estimate adds up what all steps take.
func (r *run) estimate() time.Duration {
	n, sum := len(r.rivals), checkCost
	for _, s := range r.steadySteps() {
		able := n
		if s.row.Workload == "wait" {
			able = len(canWait)
		}
		sum += times(able*r.passes, s.cost)
	}
	if len(r.steadySteps()) > 0 {
		sum += times(n, fillCost(r.keys)) / 2
	}
	if r.workloads["fresh"] {
		sum += times(2*n*r.freshPasses(), freshCost(r.block))
	}
	if r.workloads["tail-expiry"] {
		sum += times(r.expiring()*r.expiryPasses(), expiryCost(r.keys))
	}
	before := 0
	for _, live := range r.sizes() {
		sum += times(n, r.growCost(before, live))
		before = live
	}
	return sum
}

func times(n int, d time.Duration) time.Duration { return time.Duration(n) * d }

// growCost is what one store's growth from so many records to so many takes of the run.
func (r *run) growCost(before, live int) time.Duration {
	return (fillCost(live-before) + settleCost(live)) / time.Duration(r.growers)
}

// expiring is how many rivals have records expire one by one.
func (r *run) expiring() (n int) {
	for _, v := range r.rivals {
		if v.Expiry == rival.PerRecord {
			n++
		}
	}
	return n
}
