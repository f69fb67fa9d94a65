// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"os"
	"testing"
)

func TestControlPlane(t *testing.T) {
	c, err := StartControlPlane(t.Context(), ControlPlaneOptions{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(c.URL)
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}
