package main

// A model is a closed queueing network: so many customers, each of which thinks and then is served by one of the locks,
// chosen at random, first come first served. It is solved by mean value analysis (Reiser and Lavenberg, 1980), exact for
// times that vary like exponential ones. Times are in ns.
type model struct {
	think, hold float64
}

// perOperation is how far apart the operations of all customers end on average.
func (m model) perOperation(customers, locks int) float64 {
	queued, apart := 0.0, 0.0 // customers at a lock or in line for it
	for n := 1; n <= customers; n++ {
		response := m.hold * (1 + queued/float64(locks))
		apart = (m.think + response) / float64(n)
		queued = response / apart
	}
	return apart
}

// fit returns the model of an operation that takes so long when it is alone, and for which two that share a lock end
// so far apart.
func fit(alone, together float64) model {
	low, high := 0.0, alone
	for range 50 {
		hold := (low + high) / 2
		if (model{alone - hold, hold}).perOperation(2, 1) < together {
			low = hold
		} else {
			high = hold
		}
	}
	return model{alone - low, low}
}
