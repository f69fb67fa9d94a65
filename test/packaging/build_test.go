// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var goBuild = regexp.MustCompile(`go build (.*)-ldflags "(.*)" -o `)

// TestOneBuild tests that the Dockerfile and hack/binary build the manager with the same flags, so
// that both produce the same program.
func TestOneBuild(t *testing.T) {
	var found []string
	for _, file := range []string{"Dockerfile", "hack/binary"} {
		m := goBuild.FindStringSubmatch(string(read(t, filepath.Join(root(t), file))))
		if m == nil {
			t.Fatalf("%s builds nothing", file)
		}
		found = append(found, m[1]+regexp.MustCompile(`\$\{(VERSION|COMMIT)[^}]*\}`).ReplaceAllString(m[2], "$1"))
	}
	if found[0] != found[1] {
		t.Errorf("the Dockerfile builds with %q, hack/binary with %q", found[0], found[1])
	}
	if !strings.Contains(found[1], "-trimpath -buildvcs=false") {
		t.Errorf("paths or the state of git get into the program: %q", found[1])
	}
}

var (
	makeCommand = regexp.MustCompile(`(?m)run: make (.+)$`)
	matrix      = regexp.MustCompile(`(?m)target: \[(.+)\]$`)
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9%-]+):.*## `)
)

var (
	usedAction   = regexp.MustCompile(`uses:\s*(.+)`)
	pinnedAction = regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

// TestVersion: the release that the tests speak of is the Makefile's.
func TestVersion(t *testing.T) {
	if !strings.Contains(string(read(t, root(t)+"/Makefile")), "\nVERSION ?= "+version+"\n") {
		t.Errorf("the Makefile's version is not %s", version)
	}
}

// TestToolchain tests that a build with Go's first patch release fetches a later one, with the
// fixes of its standard library.
func TestToolchain(t *testing.T) {
	if !regexp.MustCompile(`(?m)^toolchain go1\.\d+\.[1-9]\d*$`).Match(read(t, root(t)+"/go.mod")) {
		t.Error("go.mod names no toolchain with a patch release")
	}
}

// TestWorkflowsAreBound tests that each action is named by its commit, because whoever takes over
// its repository can move a tag; that a checkout leaves no credentials to what runs after it; that
// the image is signed by its digest; and that a release is built with Go's last patch release.
func TestWorkflowsAreBound(t *testing.T) {
	files, err := filepath.Glob(root(t) + "/.github/workflows/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	for _, file := range files {
		name, lines := filepath.Base(file), strings.Split(string(read(t, file)), "\n")
		for i, line := range lines {
			if action := usedAction.FindStringSubmatch(line); action != nil && !pinnedAction.MatchString(action[1]) {
				t.Errorf("%s:%d: %s is not named by a commit and its tag", name, i+1, action[1])
			}
			if strings.Contains(line, "uses: actions/checkout@") &&
				!strings.Contains(strings.Join(lines[i:min(i+4, len(lines))], "\n"), "persist-credentials: false") {
				t.Errorf("%s:%d: the checkout leaves its credentials", name, i+1)
			}
			if strings.Contains(line, "cosign sign ") && !strings.Contains(line, "@$DIGEST") {
				t.Errorf("%s:%d: the image is signed by its tag", name, i+1)
			}
			if name == "release.yaml" && strings.Contains(line, "go-version-file:") {
				t.Errorf("%s:%d: go.mod may name an older patch release than Go's last one", name, i+1)
			}
		}
	}
}

// TestOnlyPublishHasRights tests that of a release's jobs, only the one that builds and tests
// nothing has rights: tests, generators and compilers run the code of many modules.
func TestOnlyPublishHasRights(t *testing.T) {
	type job struct {
		Permissions map[string]string
		Environment string
		Steps       []struct{ Run string }
	}
	var workflow struct {
		Permissions map[string]string
		Jobs        map[string]job
	}
	if err := yaml.Unmarshal(read(t, root(t)+"/.github/workflows/release.yaml"), &workflow); err != nil {
		t.Fatal(err)
	}
	rights := func(permissions map[string]string) bool {
		return slices.Contains(slices.Collect(maps.Values(permissions)), "write")
	}
	if len(workflow.Permissions) == 0 || rights(workflow.Permissions) {
		t.Errorf("each job has the permissions %v", workflow.Permissions)
	}
	for name, job := range workflow.Jobs {
		builds := slices.ContainsFunc(job.Steps, func(step struct{ Run string }) bool { return strings.Contains(step.Run, "make ") })
		switch {
		case name != "publish" && rights(job.Permissions):
			t.Errorf("job %s has the permissions %v", name, job.Permissions)
		case name == "publish" && (builds || job.Environment == "" || !rights(job.Permissions)):
			t.Error("the job that publishes must have rights, and a person's approval, and build nothing")
		}
	}
	if _, ok := workflow.Jobs["publish"]; !ok {
		t.Error("no job publishes")
	}
}

// TestImageByDigest tests that the manifests of a release name the image as they are told to: by
// tag and digest.
func TestImageByDigest(t *testing.T) {
	repository, image := t.TempDir(), image+"@sha256:"+strings.Repeat("0a", 32)
	run(t, []string{"VERSION=" + version, "IMAGE=" + image}, root(t)+"/hack/release-manifests", repository)
	for _, file := range []string{"infrastructure-components.yaml", "infrastructure-components-safety.yaml"} {
		if text := string(read(t, filepath.Join(repository, providerName, version, file))); !strings.Contains(text, "image: "+image+"\n") {
			t.Errorf("%s does not name the image by its digest", file)
		}
	}
}

// TestLicenses tests that the licenses of a release contain those of Drover and Go, and texts and
// notices of modules.
func TestLicenses(t *testing.T) {
	text := string(run(t, []string{"PLATFORMS=linux/amd64"}, root(t)+"/hack/licenses"))
	for _, want := range []string{
		"\nDrover: LICENSE\n", "\nGo go1.", "\nk8s.io/client-go v", "\ngithub.com/aws/aws-sdk-go-v2 v", ": NOTICE.txt\n",
		": third_party/forked/golang/LICENSE\n",
		"Redistribution and use in source and binary forms", "Permission is hereby granted, free of charge",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the licenses have no %q", want)
		}
	}
	if strings.Contains(text, root(t)) {
		t.Error("the licenses contain paths of this computer")
	}
}

// TestWorkflowsCallMake tests that the workflows run only targets that the Makefile has.
func TestWorkflowsCallMake(t *testing.T) {
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(string(read(t, root(t)+"/Makefile")), -1) {
		targets = append(targets, m[1])
	}
	files, err := filepath.Glob(root(t) + "/.github/workflows/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	called := 0
	for _, file := range files {
		text := string(read(t, file))
		for _, m := range slices.Concat(makeCommand.FindAllStringSubmatch(text, -1), matrix.FindAllStringSubmatch(text, -1)) {
			for _, target := range strings.Fields(strings.ReplaceAll(m[1], ",", " ")) {
				if strings.ContainsAny(target, "${}.") {
					continue // targets from the matrix are checked separately
				}
				called++
				if !slices.Contains(targets, target) && !strings.HasPrefix(target, "test-") {
					t.Errorf("%s runs 'make %s', which is no target", filepath.Base(file), target)
				}
			}
		}
	}
	if called < 8 {
		t.Errorf("the workflows run %d targets only: is this how they do?", called)
	}
}

// TestSuites tests the table of hack/suite: it has each package that "make test" leaves out, its
// files exist, the script can run each of its suites, and a change affects those that it should.
func TestSuites(t *testing.T) {
	script := string(read(t, root(t)+"/hack/suite"))
	table := regexp.MustCompile(`(?s)<<'TABLE'\n(.*?)\nTABLE\n`).FindStringSubmatch(script)
	if table == nil {
		t.Fatal("hack/suite has no table")
	}
	var all, files []string
	for line := range strings.Lines(table[1]) {
		name, paths, _ := strings.Cut(line, "|")
		name = strings.TrimSpace(name)
		all, files = append(all, name), append(files, strings.Fields(paths)...)
		if !regexp.MustCompile(`(?m)^  (.* \| )?` + strings.Fields(name)[0] + `( \| .*)?\)`).MatchString(script) {
			t.Errorf("hack/suite cannot run %s", name)
		}
	}
	for _, file := range files {
		if found, err := filepath.Glob(filepath.Join(root(t), file)); err != nil || len(found) == 0 {
			t.Errorf("there is no %s", file)
		}
	}
	long := regexp.MustCompile(`(?m)^LONG := (.+)$`).FindSubmatch(read(t, root(t)+"/Makefile"))
	if long == nil {
		t.Fatal("the Makefile has no LONG")
	}
	for _, folder := range strings.Fields(string(long[1])) {
		if !slices.ContainsFunc(files, func(f string) bool { return folder == f || folder+"/*.go" == f || strings.HasPrefix(folder, f+"/") }) {
			t.Errorf("no suite runs %s, which make test leaves out", folder)
		}
	}

	for file, want := range map[string][]string{
		"cloud/fleet/x.go":              all,
		"controllers/x.go":              all,
		"api/x.go":                      all,
		"internal/naming/x.go":          all,
		"internal/test/playground/x.go": all,
		"test/internal/rig/x.go":        all,
		"cloud/fleet/x_test.go":         nil,
		"docs/x.md":                     nil,
		"Tiltfile":                      {"tilt"},
		"test/faults/outage/x_test.go":  {"outage"},
		"test/clouds/x_test.go":         {"aws", "azure", "gcp", "vsphere"},
		"test/clouds/kubevirt/x.go":     {"kubevirt"},
		"internal/test/vcenter/x.go":    {"crash CLOUD=vsphere", "chaos CLOUD=vsphere", "vsphere", "kubeadm"},
		"cloud/openstack/x.go":          {"damage", "openstack", "vm"},
		"cloud/aws/ec2stub/x.go":        {"storm", "crash CLOUD=aws", "chaos CLOUD=aws", "aws", "takeover", "autoscaler", "kubeadm", "damage"},
	} {
		repository := t.TempDir()
		for _, command := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "before"}} {
			run(t, nil, "git", append([]string{"-C", repository, "-c", "user.name=x", "-c", "user.email=x@example.com"}, command...)...)
		}
		for name, text := range map[string]string{"hack/suite": script, file: ""} {
			path := filepath.Join(repository, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		got := strings.FieldsFunc(string(run(t, nil, filepath.Join(repository, "hack/suite"), "affected", "HEAD")),
			func(r rune) bool { return r == '\n' })
		for i := range got {
			got[i] = strings.TrimSpace(got[i])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s affects %q, want %q", file, got, want)
		}
	}
}
