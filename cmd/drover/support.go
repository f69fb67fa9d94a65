// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

const (
	// supportTimeout limits all that is collected.
	supportTimeout = 5 * time.Minute
	// supportPage is how many objects one call lists, and supportLog how many bytes of each
	// container's log are collected: the newest.
	supportPage = 500
	supportLog  = 20 << 20
	// metricsPort is that of the manager's Deployment.
	metricsPort = "8443"
)

// newSupportCommand returns the command "drover support".
func newSupportCommand() *cobra.Command {
	var (
		management management
		all        bool
		file, log  string
	)
	cmd := &cobra.Command{
		Use:   "support",
		Short: "Collect what an issue needs into one archive, without secrets",
		Long: `Write an archive (tar.gz) for an issue: Drover's and Cluster API's objects of a namespace with their conditions and Events,
the manager's Deployment, Pods, log and metrics, and the versions. Of Secrets it has only the names and keys. Fields that can
hold a secret are left out: contents of files, user data, commands, environment variables, values of annotations of others.
Look through the archive before you publish it. What you may not read is missing, and listed in errors.txt.`,
		Example: `  # All that concerns the namespace "team-a"
  drover support -n team-a

  # All namespaces, with the log of a manager that runs in no Pod
  drover support -A --log /tmp/manager.log --file support.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := context.WithTimeout(cmd.Context(), supportTimeout)
			defer stop()
			s, err := newSupport(&management, all)
			if err != nil {
				return err
			}
			s.collect(ctx, log)
			if file == "" {
				file = "drover-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if err := s.write(file); err != nil {
				return fmt.Errorf("writing the archive: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files. Look through them before you publish them.\n", file, len(s.files))
			return err
		},
	}
	management.addFlags(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "Namespace of the objects. Default: that of the kubeconfig's context."
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Collect the objects of all namespaces.")
	cmd.Flags().StringVar(&file, "file", "", "File to write. Default: drover-support-TIME.tar.gz in this folder.")
	cmd.Flags().StringVar(&log, "log", "", "Path to the log of a manager that runs in no Pod, to be added. Default: none.")
	return cmd
}

// support collects files. What can't be read is listed, and stops nothing.
type support struct {
	client    client.Client
	set       kubernetes.Interface
	namespace string // "" is all
	files     map[string][]byte
	failed    []string
}

func newSupport(m *management, all bool) (*support, error) {
	c, namespace, err := m.connect()
	if err != nil {
		return nil, err
	}
	config, err := m.config()
	if err != nil {
		return nil, err
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the management cluster: %w", err)
	}
	if all {
		namespace = ""
	}
	return &support{client: c, set: set, namespace: namespace, files: map[string][]byte{}}, nil
}

func (s *support) collect(ctx context.Context, log string) {
	v := ownVersions()
	v.Managers = managerVersions(ctx, s.client)
	s.add("versions.yaml", v)
	if server, err := s.set.Discovery().ServerVersion(); s.can("the API server's version", err) {
		s.add("kubernetes.yaml", server)
	}
	s.objects(ctx)
	s.events(ctx)
	s.secrets(ctx)
	s.managers(ctx)
	if log != "" {
		if text, err := os.ReadFile(log); s.can("--log", err) {
			s.files["manager/"+path.Base(log)] = []byte(redactText(string(text)))
		}
	}
	if len(s.failed) > 0 {
		s.files["errors.txt"] = []byte(redactText(strings.Join(s.failed, "\n") + "\n"))
	}
}

// can says whether something could be read.
func (s *support) can(what string, err error) bool {
	if err != nil {
		s.failed = append(s.failed, what+": "+err.Error())
	}
	return err == nil
}

// add adds a value as YAML.
func (s *support) add(name string, value any) {
	data, err := yaml.Marshal(value)
	if s.can(name, err) {
		s.files[name] = data
	}
}

// isClusterAPIs says whether a group is Cluster API's or of one of its providers, as Drover's are.
func isClusterAPIs(group string) bool {
	return group == clusterv1.GroupVersion.Group || strings.HasSuffix(group, "."+clusterv1.GroupVersion.Group)
}

// objects collects all kinds of Cluster API and its providers, and a table of conditions.
func (s *support) objects(ctx context.Context) {
	lists, err := s.set.Discovery().ServerPreferredResources() // of the groups that answered, also with an error
	s.can("the list of kinds", err)
	var conditions []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || !isClusterAPIs(gv.Group) {
			continue
		}
		for _, r := range list.APIResources {
			if !r.Namespaced || strings.Contains(r.Name, "/") || !slices.Contains([]string(r.Verbs), "list") {
				continue
			}
			for _, o := range s.list(ctx, gv.WithKind(r.Kind), s.namespace) {
				conditions = append(conditions, untrue(&o)...)
				s.addObject("objects/"+o.GetNamespace()+"/"+r.Name+"."+gv.Group+"/"+o.GetName()+".yaml", &o)
			}
		}
	}
	slices.Sort(conditions)
	s.files["conditions.txt"] = []byte(redactText(strings.Join(conditions, "\n") + "\n"))
}

// list lists all objects of a kind.
func (s *support) list(ctx context.Context, kind schema.GroupVersionKind, namespace string,
	options ...client.ListOption) (all []unstructured.Unstructured) {
	page := &unstructured.UnstructuredList{}
	for {
		page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := s.client.List(ctx, page, append(options, client.InNamespace(namespace), client.Limit(supportPage),
			client.Continue(page.GetContinue()))...)
		if !s.can(kind.String(), err) {
			return all
		}
		if all = append(all, page.Items...); page.GetContinue() == "" {
			return all
		}
	}
}

func (s *support) addObject(name string, o *unstructured.Unstructured) {
	redactObject(o.Object)
	s.add(name, o.Object)
}

// untrue returns a line for each condition that is not True.
func untrue(o *unstructured.Unstructured) (lines []string) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions") // none, or of another form
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["status"] != "True" {
			lines = append(lines, fmt.Sprintf("%s %s/%s: %v=%v %v: %v", o.GetKind(), o.GetNamespace(), o.GetName(), c["type"], c["status"],
				c["reason"], c["message"]))
		}
	}
	return lines
}

// events collects the Events about Cluster API's and Drover's objects, in their order.
func (s *support) events(ctx context.Context) {
	var lines []string
	for _, o := range s.list(ctx, corev1.SchemeGroupVersion.WithKind("Event"), s.namespace) {
		field := func(fields ...string) string {
			text, _, _ := unstructured.NestedString(o.Object, fields...) // "" if it has another form
			return text
		}
		gv, err := schema.ParseGroupVersion(field("involvedObject", "apiVersion"))
		if err != nil || !isClusterAPIs(gv.Group) {
			continue
		}
		at := max(field("lastTimestamp"), field("series", "lastObservedTime"), field("eventTime"),
			o.GetCreationTimestamp().UTC().Format(time.RFC3339))
		lines = append(lines, fmt.Sprintf("%s %s %s %s/%s %s: %s", at, field("type"), field("involvedObject", "kind"),
			o.GetNamespace(), field("involvedObject", "name"), field("reason"), field("message")))
	}
	slices.Sort(lines)
	s.files["events.txt"] = []byte(redactText(strings.Join(lines, "\n") + "\n"))
}

// secrets collects the names and keys of the Secrets that Cluster API and Drover use.
func (s *support) secrets(ctx context.Context) {
	var lines []string
	for _, label := range []string{clusterv1.ClusterNameLabel, infrav1.CredentialsLabel} {
		list := &corev1.SecretList{}
		if !s.can("Secrets", s.client.List(ctx, list, client.InNamespace(s.namespace), client.HasLabels{label})) {
			return
		}
		for _, secret := range list.Items {
			lines = append(lines, fmt.Sprintf("%s/%s %s: %s", secret.Namespace, secret.Name, secret.Type,
				strings.Join(slices.Sorted(maps.Keys(secret.Data)), ", ")))
		}
	}
	slices.Sort(lines)
	s.files["secrets.txt"] = []byte(strings.Join(slices.Compact(lines), "\n") + "\n")
}

// managers collects the Deployments and Pods of the managers, with logs and metrics.
func (s *support) managers(ctx context.Context) {
	ours := client.MatchingLabels{clusterv1.ProviderNameLabel: providerLabel}
	namespaces := map[string]bool{}
	for _, d := range managers(ctx, s.client) {
		namespaces[d.Namespace] = true
	}
	if len(namespaces) == 0 {
		s.failed = append(s.failed, "no Deployment of the manager can be read")
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		for _, kind := range []schema.GroupVersionKind{{Group: "apps", Version: "v1", Kind: "Deployment"},
			corev1.SchemeGroupVersion.WithKind("Pod")} {
			for _, o := range s.list(ctx, kind, namespace, ours) {
				s.addObject("manager/"+namespace+"/"+o.GetKind()+"-"+o.GetName()+".yaml", &o)
				if o.GetKind() == "Pod" {
					s.pod(ctx, namespace, o.GetName())
				}
			}
		}
	}
}

// pod collects the logs and the metrics of a manager's Pod.
func (s *support) pod(ctx context.Context, namespace, name string) {
	pods := s.set.CoreV1().Pods(namespace)
	for suffix, previous := range map[string]bool{".log": false, "-previous.log": true} {
		text, err := pods.GetLogs(name, &corev1.PodLogOptions{
			Container: "manager", Previous: previous, Timestamps: true, LimitBytes: ptr.To[int64](supportLog),
			TailLines: ptr.To[int64](supportLog / 100),
		}).DoRaw(ctx)
		if previous && err != nil {
			continue // it has not been restarted
		}
		if s.can("the log of Pod "+name, err) {
			s.files["manager/"+namespace+"/"+name+suffix] = []byte(redactText(string(text)))
		}
	}
	var errs []error
	for _, scheme := range []string{"https", "http"} {
		text, err := pods.ProxyGet(scheme, name, metricsPort, "metrics", nil).DoRaw(ctx)
		if err == nil {
			s.files["manager/"+namespace+"/"+name+"-metrics.txt"] = []byte(redactText(string(text)))
			return
		}
		errs = append(errs, err)
	}
	s.can("the metrics of Pod "+name+", which the API server can reach if the manager has --insecure-diagnostics", errors.Join(errs...))
}

// write writes the archive. Nobody else may read it.
func (s *support) write(name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(f)
	archive := tar.NewWriter(zipped)
	defer func() { err = errors.Join(err, archive.Close(), zipped.Close(), f.Close()) }()
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		data := s.files[name]
		if err := archive.WriteHeader(&tar.Header{Name: "drover-support/" + name, Mode: 0o600, Size: int64(len(data)),
			ModTime: now}); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	return nil
}
