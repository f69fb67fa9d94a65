// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestRestart: a line of input takes another manager in the first one's place, and what was in the cluster stays.
func TestRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	in, enter := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, in, out)
		out.CloseWithError(io.EOF)
		ended <- err
	}()
	lines := bufio.NewScanner(said)
	after := func(prefix string) string { // the rest of the next line that has it
		for lines.Scan() {
			t.Log(lines.Text())
			if _, rest, ok := strings.Cut(lines.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("it never said %q: %v", prefix, <-ended)
		return ""
	}

	config, err := clientcmd.BuildConfigFromFlags("", after("KUBECONFIG="))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	secret := func() *corev1.Secret {
		s, err := client.CoreV1().Secrets(metav1.NamespaceDefault).Get(ctx, "adopted-kubeconfig", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := secret().UID
	after("The simulated cloud:")
	if _, err := io.WriteString(enter, "\n"); err != nil {
		t.Fatal(err)
	}
	if log := after("restarted; log: "); !strings.HasSuffix(log, "drover-2.log") {
		t.Errorf("the second manager's log is %s", log)
	}
	if secret().UID != before {
		t.Error("the cluster is another one")
	}
	cancel()
	go func() { // what it says to the end
		for lines.Scan() {
		}
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
