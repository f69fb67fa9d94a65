// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"strings"
	"testing"

	"github.com/drover-io/drover/controllers"
)

// TestTracesAreOff: without an endpoint, nothing of the traces is set up: no controller, goroutine
// or client. There is no manager here that could get one.
func TestTracesAreOff(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	if n := testing.AllocsPerRun(10, func() {
		if err := setupTraces(nil, controllers.Startups{}, managerOptions{}); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestEndpointOfTraces: what is no URL of a collector ends the manager, wherever it comes from.
func TestEndpointOfTraces(t *testing.T) {
	for _, wrong := range []string{"collector:4317", "ftp://collector", "http://", "%"} {
		err := setupTraces(nil, controllers.Startups{}, managerOptions{controllers: controllerOptions{otlpEndpoint: wrong}})
		if err == nil || !strings.Contains(err.Error(), "want a URL such as http://") {
			t.Errorf("%s: %v", wrong, err)
		}
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", wrong)
		if again := setupTraces(nil, controllers.Startups{}, managerOptions{}); again == nil || again.Error() != err.Error() {
			t.Errorf("%s: %v", wrong, again)
		}
	}
}
