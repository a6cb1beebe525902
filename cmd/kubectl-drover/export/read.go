// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/rancher"
)

const (
	pageSize = 500
	// progressStep is the number of objects that are read between two progress messages.
	progressStep = 2000
)

// source reads from one cluster: Rancher's own cluster, or a member.
type source struct {
	client.Client
	host     string
	progress func(kind string, read int)
	unread   *[]rancher.Unread
}

// source connects to the cluster that a context points to. If kubeContext is empty, it uses the current context.
func (e *exporter) source(kubeContext string, objects *rancher.Objects) (source, error) {
	overrides := e.flags.Overrides
	if kubeContext != "" {
		overrides = clientcmd.ConfigOverrides{CurrentContext: kubeContext, Timeout: e.flags.Overrides.Timeout}
	}
	config, err := cli.ConfigOf(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(e.flags.Loading, &overrides), "Rancher server")
	if err != nil {
		return source{}, err
	}
	e.flags.Patient(config)
	kinds := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(kinds), metav1.AddMetaToScheme(kinds)); err != nil {
		return source{}, fmt.Errorf("make client: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return source{}, fmt.Errorf("make client of %s: %w", config.Host, err)
	}
	progress := func(kind string, read int) { fmt.Fprintf(e.progress, "Read %d %s\n", read, kind) }
	return source{Client: c, host: config.Host, progress: progress, unread: &objects.Unread}, nil
}

// pages lists objects page by page, and calls the each function with every object.
func (s source) pages(ctx context.Context, list client.ObjectList, kind, selector string, each func(runtime.Object) error) error {
	read := 0
	p := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is not a list", list)
		}
		options.LabelSelector = selector
		if err := s.List(ctx, page, &client.ListOptions{Raw: &options, Limit: options.Limit, Continue: options.Continue}); err != nil {
			return nil, err
		}
		if options.Continue == "" { // if the list has expired, start again
			read = 0
		}
		before := read
		read += meta.LenList(page)
		if before/progressStep != read/progressStep || page.GetContinue() == "" && read > pageSize {
			s.progress(kind, read)
		}
		return page, nil
	})
	p.PageSize = pageSize
	all, _, err := p.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return meta.EachListItem(all, each)
}

// listInto lists the objects of a Rancher kind. It records objects that cannot be read and continues. It returns an
// error only if ctx is canceled.
func listInto[T any](ctx context.Context, s source, kind schema.GroupVersionKind, into *[]T) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	plural := strings.ToLower(kind.Kind) + "s." + kind.Group
	err := s.pages(ctx, list, plural, "", func(o runtime.Object) error {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("%T is not an object", o)
		}
		var one T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &one); err != nil {
			s.note(kind.Kind+" "+strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/"),
				"its fields do not match Rancher's kind: "+err.Error())
			return nil
		}
		*into = append(*into, one)
		return nil
	})
	return s.failed(ctx, plural, err)
}

func (s source) note(what, why string) {
	*s.unread = append(*s.unread, rancher.Unread{What: what, Why: why})
}

// failed records the reason why a kind could not be read. It ignores kinds that the server does not serve.
func (s source) failed(ctx context.Context, plural string, err error) error {
	switch {
	case err == nil || meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("read %s: %w", plural, err)
	case apierrors.IsForbidden(err):
		s.note(plural, "you may not list them at "+s.host)
	default:
		s.note(plural, err.Error())
	}
	return nil
}

// read reads all objects that an export needs.
func (e *exporter) read(ctx context.Context) (rancher.Objects, error) {
	var all rancher.Objects
	s, err := e.source("", &all)
	if err != nil {
		return all, err
	}
	management := schema.GroupVersion{Group: "management.cattle.io", Version: "v3"}
	probe := &unstructured.UnstructuredList{}
	probe.SetGroupVersionKind(management.WithKind("ClusterList"))
	switch err := s.List(ctx, probe, client.Limit(1)); {
	case meta.IsNoMatchError(err):
		return all, fmt.Errorf("%s does not serve clusters.management.cattle.io: select the cluster that Rancher runs in "+
			"with --kubeconfig or --context", s.host)
	case err != nil:
		return all, fmt.Errorf("list clusters.management.cattle.io at %s: %w", s.host, err)
	}
	err = errors.Join(
		listInto(ctx, s, management.WithKind("Cluster"), &all.Clusters),
		listInto(ctx, s, management.WithKind("Project"), &all.Projects),
		listInto(ctx, s, management.WithKind("RoleTemplate"), &all.RoleTemplates),
		listInto(ctx, s, management.WithKind("ClusterRoleTemplateBinding"), &all.ClusterBindings),
		listInto(ctx, s, management.WithKind("ProjectRoleTemplateBinding"), &all.ProjectBindings),
		listInto(ctx, s, management.WithKind("User"), &all.Users),
		listInto(ctx, s, management.WithKind("UserAttribute"), &all.UserAttributes),
		listInto(ctx, s, management.WithKind("GlobalRole"), &all.GlobalRoles),
		listInto(ctx, s, management.WithKind("GlobalRoleBinding"), &all.GlobalBindings),
		listInto(ctx, s, schema.GroupVersionKind{Group: "provisioning.cattle.io", Version: "v1", Kind: "Cluster"}, &all.Provisioned),
		listInto(ctx, s, planKind(), &all.Plans),
		e.readSecrets(ctx, s, &all),
		e.readMembers(ctx, s, &all),
	)
	return all, err
}

func planKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "upgrade.cattle.io", Version: "v1", Kind: "Plan"}
}

// readSecrets lists the Secrets that belong to projects. Unless the user requests the values, it reads only the
// metadata.
func (e *exporter) readSecrets(ctx context.Context, s source, all *rancher.Objects) error {
	var list client.ObjectList = &corev1.SecretList{}
	if !e.SecretValues {
		names := &metav1.PartialObjectMetadataList{}
		names.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
		list = names
	}
	err := s.pages(ctx, list, "secrets", rancher.LabelSecretProject, func(o runtime.Object) error {
		switch o := o.(type) {
		case *corev1.Secret:
			all.Secrets = append(all.Secrets, *o)
		case *metav1.PartialObjectMetadata:
			all.Secrets = append(all.Secrets, corev1.Secret{ObjectMeta: o.ObjectMeta})
		}
		return nil
	})
	if apierrors.IsForbidden(err) && !e.SecretValues {
		all.SecretsForbidden = true // the report says so
		return nil
	}
	return s.failed(ctx, "secrets", err)
}

// readMembers reads the Plans and the projects of the namespaces in all members.
func (e *exporter) readMembers(ctx context.Context, local source, all *rancher.Objects) error {
	e.Members = map[string]rancher.Member{}
	sources := map[string]source{}
	for _, pair := range e.contexts {
		display, kubeContext, found := strings.Cut(pair, "=")
		id := rancher.ClusterNamed(all.Clusters, display)
		if !found || kubeContext == "" || id == "" {
			return fmt.Errorf("--member-context %q: use CLUSTER=CONTEXT, where CLUSTER is a cluster of Rancher", pair)
		}
		s, err := e.source(kubeContext, all)
		if err != nil {
			return fmt.Errorf("--member-context %s: %w", pair, err)
		}
		sources[id] = s
	}
	for _, cl := range all.Clusters {
		if cl.Name == "local" && e.Wants(cl) {
			sources[cl.Name] = local
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sources)) {
		member, err := readMember(ctx, sources[id], id)
		if err != nil {
			return err
		}
		e.Members[id] = member
	}
	return nil
}

// readMember reads the Plans and the projects of the namespaces in the cluster.
func readMember(ctx context.Context, s source, id string) (rancher.Member, error) {
	m := rancher.Member{Namespaces: map[string][]string{}}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	kind := "namespaces of " + id
	err := s.pages(ctx, list, kind, "", func(o runtime.Object) error {
		namespace, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("%T is not an object", o)
		}
		// The annotation takes precedence, because Rancher updates the label of the same name to match it.
		if cluster, project, found := strings.Cut(namespace.Annotations[rancher.LabelProjectID], ":"); found && cluster == id {
			m.Namespaces[project] = append(m.Namespaces[project], namespace.Name)
		}
		return nil
	})
	return m, errors.Join(s.failed(ctx, kind, err), listInto(ctx, s, planKind(), &m.Plans))
}
