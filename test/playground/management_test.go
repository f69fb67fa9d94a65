// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"testing"
	"time"
)

func TestManagement(t *testing.T) {
	t0 := time.Now()
	m, err := StartManagement(t.Context(), ManagementOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(t0))
	if err := m.InstallDrover(t.Context()); err != nil {
		t.Error(err)
	}
	t.Log(time.Since(t0))
	if err := m.Stop(); err != nil {
		t.Error(err)
	}
}
