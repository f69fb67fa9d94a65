// SPDX-License-Identifier: Apache-2.0

package driverkit

import "github.com/drover-io/drover/internal/budget"

// SizeOf returns how many bytes of memory a value takes with all that it refers to, roughly. It is
// for what a driver keeps of answers.
func SizeOf(value any) int64 { return budget.SizeOf(value) }
