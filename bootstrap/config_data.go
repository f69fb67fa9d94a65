// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/naming"
)

// The keys of the data Secret, besides render.FilesKey. Cluster API's contract defines the first
// two.
const (
	valueKey  = "value"
	formatKey = "format"
	tokenKey  = "bootstrap-token" // so that a crash between the two Secrets leaves no unknown token
)

// ensureData returns the name of the Secret with the user data, and the bootstrap token in it. The
// Secret is written only once: a Machine that refers to it keeps it, even if this config's status
// is lost.
func (r *ConfigReconciler) ensureData(ctx context.Context, s *scope, workload client.Client) (name, token string, err error) {
	handedOut := ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, "")
	if known, ok := r.tokens.Get(s.config.UID); ok && !known.Gone { // remembered only after both Secrets existed
		return cmp.Or(s.config.Status.DataSecretName, handedOut, s.config.Name), known.Token, nil
	}
	if handedOut != "" {
		return r.adoptData(ctx, s, handedOut)
	}
	if s.config.Status.DataSecretName == "" {
		if token, err = r.createData(ctx, s, workload); !apierrors.IsAlreadyExists(err) {
			return s.config.Name, token, err
		}
	}
	return r.adoptData(ctx, s, s.config.Name)
}

// createData creates the Secret with a new token.
func (r *ConfigReconciler) createData(ctx context.Context, s *scope, workload client.Client) (string, error) {
	data, token, err := r.render(ctx, s, workload)
	if err != nil {
		return "", err
	}
	err = r.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.config.Name, Namespace: s.config.Namespace,
			Labels:          map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name},
			OwnerReferences: []metav1.OwnerReference{ownedBy(s.config)},
		},
		Type: clusterv1.ClusterSecretType,
		Data: data,
	})
	if err != nil {
		return "", fmt.Errorf("writing the Secret with the user data: %w", err)
	}
	return token, nil
}

// adoptData uses an existing Secret as it is. It never regenerates the data, because a VM may have
// booted from them.
func (r *ConfigReconciler) adoptData(ctx context.Context, s *scope, name string) (string, string, error) {
	found := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.config.Namespace, Name: name}, found)
	switch {
	case apierrors.IsNotFound(err):
		return "", "", &waiting{
			reason: bootstrapv1.InternalErrorReason, after: recheck,
			message: fmt.Sprintf("The Secret %q with the user data is gone. Drover does not create it again, because a VM may have started from it: delete the Machine", name),
		}
	case err != nil:
		return "", "", fmt.Errorf("reading the Secret with the user data: %w", err)
	}
	if err := r.own(ctx, s, found); err != nil {
		return "", "", err
	}
	return name, string(found.Data[tokenKey]), nil
}

// own makes the config the Secret's owner if the owner reference has only the right name, as after
// a restore from a backup. It refuses a Secret that never belonged to the config.
func (r *ConfigReconciler) own(ctx context.Context, s *scope, found *corev1.Secret) error {
	owner := metav1.GetControllerOf(found)
	if owner != nil && owner.UID == s.config.UID {
		return nil
	}
	handedOut := ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, "") == found.Name
	ours := found.Type == clusterv1.ClusterSecretType && found.Labels[clusterv1.ClusterNameLabel] == s.cluster.Name &&
		len(found.Data[valueKey]) > 0
	same := owner == nil || (owner.Kind == "DroverConfig" && owner.Name == s.config.Name)
	if !handedOut || !ours || !same {
		return &waiting{
			reason: bootstrapv1.InternalErrorReason, after: recheck,
			message: fmt.Sprintf("Secret %q already exists and does not belong to this config: delete it, or rename the config", found.Name),
		}
	}
	before := found.DeepCopy()
	found.OwnerReferences = []metav1.OwnerReference{ownedBy(s.config)}
	if err := r.Client.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the owner of the Secret with the user data: %w", err)
	}
	return nil
}

// replaceData regenerates the user data, because another machine's token has the same ID. It does
// so only before a Machine refers to them.
func (r *ConfigReconciler) replaceData(ctx context.Context, s *scope, workload client.Client) error {
	if s.machine.Spec.Bootstrap.DataSecretName != nil {
		return &waiting{
			reason: bootstrapv1.InternalErrorReason, after: recheck,
			message: "Another machine's bootstrap token has the same ID, and this user data is in use: delete the Machine",
		}
	}
	found := &corev1.Secret{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.config), found); err != nil {
		return fmt.Errorf("reading the Secret with the user data: %w", err)
	}
	before := found.DeepCopy()
	data, _, err := r.render(ctx, s, workload)
	if err != nil {
		return err
	}
	found.Data = data
	if err := r.Client.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the Secret with the user data: %w", err)
	}
	return &waiting{reason: bootstrapv1.InternalErrorReason,
		message: "Another machine's bootstrap token has the same ID; creating another token", after: time.Second}
}

func (r *ConfigReconciler) render(ctx context.Context, s *scope, workload client.Client) (map[string][]byte, string, error) {
	ca, err := r.clusterCA(ctx, s.cluster)
	if err != nil {
		return nil, "", err
	}
	clientCA, err := r.clientCAs.get(ctx, s.cluster, workload)
	if err != nil {
		return nil, "", err
	}
	host := Host{}
	if r.Host != nil {
		if host, err = r.Host(ctx, s.machine); apierrors.IsNotFound(err) {
			return nil, "", &waiting{
				reason:  bootstrapv1.WaitingForInfrastructureReason,
				after:   min(max(time.Since(s.config.CreationTimestamp.Time), time.Second), recheck), // a new object may not be in the cache yet
				message: "Waiting for objects that the user data depends on: " + err.Error(),
			}
		} else if err != nil {
			return nil, "", fmt.Errorf("reading the infrastructure's requirements for the user data: %w", err)
		}
	}
	secrets, err := readSecrets(ctx, r.APIReader, s.config.Namespace, render.SecretKeys(&s.config.Spec))
	if err != nil {
		return nil, "", err
	}
	version := ""
	if render.Installs(&s.config.Spec) {
		if version, err = r.controlPlaneVersion(ctx, s.cluster); err != nil {
			return nil, "", err
		}
	}
	text, err := token.New()
	if err != nil {
		return nil, "", err
	}
	in := render.Input{
		Spec:          &s.config.Spec,
		Secrets:       secrets,
		NodeName:      naming.NodeName(s.machine.Name),
		ProviderID:    host.ProviderID,
		Server:        "https://" + s.cluster.Spec.ControlPlaneEndpoint.String(),
		CA:            ca,
		ClientCA:      clientCA,
		Token:         text,
		ClusterDNS:    dnsAddress(s.cluster),
		ClusterDomain: s.cluster.Spec.ClusterNetwork.ServiceDomain,
		Version:       s.machine.Spec.Version, ControlPlaneVersion: version,
	}
	data := map[string][]byte{formatKey: []byte(formatWord(&s.config.Spec)), tokenKey: []byte(text)}
	data[valueKey], err = render.UserData(in)
	if err == nil && host.Takes != nil {
		if tooLarge := host.Takes(data[valueKey]); tooLarge != nil {
			err = moveFilesOut(in, data, tooLarge)
		}
	}
	if err != nil {
		w := &waiting{reason: bootstrapv1.InvalidSpecReason, message: err.Error()}
		if version != "" || len(secrets) > 0 { // no watch reports an upgraded control plane or a corrected Secret
			w.after = recheck
		}
		return nil, "", w
	}
	return data, text, r.warnOfVersion(ctx, s)
}

// warnOfVersion emits an Event if the Machine's version is newer than what an adopted API server
// reports. It refuses nothing, because the version of the kubelet in an image is not known. For other
// control planes, Cluster API checks the version before it creates a Machine.
func (r *ConfigReconciler) warnOfVersion(ctx context.Context, s *scope) error {
	ref, adopted := s.cluster.Spec.ControlPlaneRef, &controlplanev1.AdoptedControlPlane{}
	if ref.GroupKind() != controlplanev1.AdoptedControlPlaneKind || render.Installs(&s.config.Spec) {
		return nil
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: ref.Name}, adopted)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the AdoptedControlPlane: %w", err)
	}
	if server := adopted.Status.Version; render.IsNewer(s.machine.Spec.Version, server) {
		r.Recorder.Eventf(s.config, s.machine, corev1.EventTypeWarning, "VersionNewerThanAPIServer", "CreateUserData",
			"The Machine's version %s is newer than the API server's %s: if the image has that kubelet, it may not join. "+
				"Upgrade the control plane first, or change the Machine's version", s.machine.Spec.Version, server)
	}
	return nil
}

// formatWord returns Cluster API's word for the format of a spec's user data.
func formatWord(spec *bootstrapv1.DroverConfigSpec) kubeadmv1.Format {
	if render.FormatOf(spec) == bootstrapv1.FormatIgnition {
		return kubeadmv1.Ignition
	}
	return kubeadmv1.CloudConfig
}

// moveFilesOut moves the files out of user data that are too large for the cloud. The machine
// fetches them.
func moveFilesOut(in render.Input, data map[string][]byte, tooLarge error) (err error) {
	if data[valueKey], data[render.FilesKey], err = render.Split(in); err != nil {
		return fmt.Errorf("%w; %w", tooLarge, err)
	}
	return nil
}

// clusterCA returns the certificate authority in the Cluster's kubeconfig.
func (r *ConfigReconciler) clusterCA(ctx context.Context, cluster *clusterv1.Cluster) ([]byte, error) {
	name := secret.Name(cluster.Name, secret.Kubeconfig)
	unusable := func(err error) error {
		return &waiting{
			reason: bootstrapv1.KubeconfigInvalidReason, after: recheck,
			message: fmt.Sprintf("The kubeconfig in the Secret %q can't be used: %s", name, err),
		}
	}
	found := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, found)
	if apierrors.IsNotFound(err) {
		return nil, unusable(errors.New("the Secret does not exist"))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Cluster's kubeconfig: %w", err)
	}
	config, err := kubeconfig.Parse(found.Data[secret.KubeconfigDataName])
	if err != nil {
		return nil, unusable(err)
	}
	return config.CA(), nil
}

// dnsAddress returns the tenth address of the Cluster's first Service network, as kubeadm does, or
// "".
func dnsAddress(cluster *clusterv1.Cluster) string {
	blocks := cluster.Spec.ClusterNetwork.Services.CIDRBlocks
	if len(blocks) == 0 {
		return ""
	}
	prefix, err := netip.ParsePrefix(blocks[0])
	if err != nil {
		return ""
	}
	a := prefix.Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	if !prefix.Contains(a) {
		return ""
	}
	return a.String()
}

func ownedBy(config *bootstrapv1.DroverConfig) metav1.OwnerReference {
	return *metav1.NewControllerRef(config, bootstrapv1.GroupVersion.WithKind("DroverConfig"))
}
