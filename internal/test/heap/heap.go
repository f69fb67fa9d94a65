// SPDX-License-Identifier: Apache-2.0

// Package heap measures in tests what a value keeps in memory.
package heap

import "runtime"

// KeptBy returns how many more bytes are in use while the result of a function is. No other test
// may run meanwhile.
func KeptBy[T any](produce func() T) int64 {
	before := inUse()
	kept := produce()
	size := inUse() - before
	runtime.KeepAlive(kept)
	return size
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
