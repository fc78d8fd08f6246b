package load

import (
	"runtime"
	"runtime/metrics"
)

// heap is what the collector found alive, or did not look at since.
func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func collectNow() float64 { return collect(runtime.GC) }

// collect returns the processor time, in ms, that the collector took while gc ran.
func collect(gc func()) float64 {
	before := collectorSeconds()
	gc()
	return 1e3 * (collectorSeconds() - before)
}

func collectorSeconds() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
}
