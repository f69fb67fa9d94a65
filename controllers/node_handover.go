// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// NodeHandover hands work on workload clusters over from DroverMachineReconciler to NodeReconciler,
// and the results back. So a DroverMachine's status has a single writer, and what both controllers
// learn at the same time costs one write. A restart loses the content, and both controllers repeat
// their work.
type NodeHandover struct {
	// Machines enqueues machines for DroverMachineReconciler, Nodes for NodeReconciler.
	Machines, Nodes *EventQueue

	mu  sync.Mutex
	all map[client.ObjectKey]*nodeState
}

// nodeState is what is handed over for one machine.
type nodeState struct {
	uid  types.UID
	link *nodeLink // nil before NodeReconciler has looked
	// tasks holds what DroverMachineReconciler has requested, and results what became of it.
	tasks   map[nodeTaskKind]nodeTask
	results map[nodeTaskKind]nodeTaskResult
}

// nodeLink is whether a machine has its Node, and what prevents or delays it.
type nodeLink struct {
	joined bool
	issue  nodeIssue
}

type nodeTaskKind int

const (
	// adoptNode sets the provider ID of a VM that is about to be deleted on its Node.
	adoptNode nodeTaskKind = iota
	// removeGoneNode removes the Node of a VM that is gone although nobody deleted it, at a limited
	// rate.
	removeGoneNode
	// removeDeletedNode removes the Node of a VM that was deleted.
	removeDeletedNode
)

// nodeTask is one request. providerID and addresses are those of the VM.
type nodeTask struct {
	kind       nodeTaskKind
	providerID string
	addresses  []clusterv1.MachineAddress
}

// nodeTaskResult is what became of a task.
type nodeTaskResult struct {
	requested time.Time
	done      bool
	held      bool  // the rate of removals keeps the Node for now
	err       error // of the last attempt
}

// request returns what became of a task. It hands the task over if this has not happened yet.
func (h *NodeHandover) request(m *infrav1.DroverMachine, task nodeTask) nodeTaskResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state(m)
	if known, ok := s.tasks[task.kind]; ok && known.providerID == task.providerID {
		return s.results[task.kind]
	}
	s.tasks[task.kind], s.results[task.kind] = task, nodeTaskResult{requested: time.Now()}
	h.Nodes.Add(requestFor(m))
	return s.results[task.kind]
}

// cancel takes a task back.
func (h *NodeHandover) cancel(m *infrav1.DroverMachine, kind nodeTaskKind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.known(m); s != nil {
		delete(s.tasks, kind)
		delete(s.results, kind)
	}
}

// open returns the tasks of a machine that are not done. The removal of the Node of a gone VM stays
// open, because a Node may be seen late.
func (h *NodeHandover) open(m *infrav1.DroverMachine) (tasks []nodeTask) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.known(m)
	if s == nil {
		return nil
	}
	for _, kind := range []nodeTaskKind{adoptNode, removeGoneNode, removeDeletedNode} {
		if task, ok := s.tasks[kind]; ok && (kind == removeGoneNode || !s.results[kind].done) {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// report hands the result of a task back, and enqueues the machine if it is a new one.
func (h *NodeHandover) report(m *infrav1.DroverMachine, task nodeTask, result nodeTaskResult) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.known(m)
	if s == nil {
		return
	}
	known, ok := s.results[task.kind]
	if !ok || s.tasks[task.kind].providerID != task.providerID {
		return // the task was taken back or replaced
	}
	result.requested = known.requested
	s.results[task.kind] = result
	if result.done != known.done || result.held != known.held || (result.err == nil) != (known.err == nil) {
		h.Machines.Add(requestFor(m))
	}
}

// link returns what NodeReconciler knows of the machine's Node.
func (h *NodeHandover) link(m *infrav1.DroverMachine) (nodeLink, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.known(m); s != nil && s.link != nil {
		return *s.link, true
	}
	return nodeLink{}, false
}

// reportLink hands over whether the machine has its Node. It enqueues a provisioned machine whose
// NodeJoined condition says something else. For a machine that is not provisioned yet,
// DroverMachineReconciler writes the result to NodeJoined once the VM runs.
func (h *NodeHandover) reportLink(m *infrav1.DroverMachine, link nodeLink) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state(m).link = &link
	if isProvisioned(m) && !saysNodeJoined(m, link) {
		h.Machines.Add(requestFor(m))
	}
}

func (h *NodeHandover) forget(key client.ObjectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, key)
}

// known returns the state of this very machine; nil if there is none. It is called with the lock
// held.
func (h *NodeHandover) known(m *infrav1.DroverMachine) *nodeState {
	if s := h.all[client.ObjectKeyFromObject(m)]; s != nil && s.uid == m.UID {
		return s
	}
	return nil
}

// state returns the state of this very machine, and makes it if there is none. It is called with
// the lock held.
func (h *NodeHandover) state(m *infrav1.DroverMachine) *nodeState {
	if s := h.known(m); s != nil {
		return s
	}
	key := client.ObjectKeyFromObject(m)
	if h.all == nil {
		h.all = map[client.ObjectKey]*nodeState{}
	}
	h.all[key] = &nodeState{uid: m.UID, tasks: map[nodeTaskKind]nodeTask{}, results: map[nodeTaskKind]nodeTaskResult{}}
	return h.all[key]
}

func requestFor(m *infrav1.DroverMachine) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)}
}
