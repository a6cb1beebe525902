// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// policyProgram is the name under which labctl enforces NetworkPolicies, so that it has a separate log.
const policyProgram = "network-policies"

// policyUser is the name of the user that nodes use to read NetworkPolicies, pods and namespaces.
const policyUser = "lab:network-policies"

// grantPolicies allows policyUser to read NetworkPolicies, pods and namespaces.
func (l *Lab) grantPolicies(ctx context.Context, cluster string) error {
	client, err := l.client(cluster)
	if err != nil {
		return err
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policyUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: policyUser}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("let the nodes of %s read NetworkPolicies: %w", cluster, err)
	}
	return nil
}

// runPolicies enforces the cluster's NetworkPolicies for the pods of a node until an error occurs. It is then
// restarted, and the rules stay in place in the meantime. Its arguments are a kubeconfig and the node's name.
func runPolicies(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: policies KUBECONFIG NODE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("enforce NetworkPolicies: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("enforce NetworkPolicies: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // not all objects have been read yet
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() }}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer(), factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("enforce NetworkPolicies: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for applied := ""; ; <-changed {
		if applied, err = enforce(factory, args[1], applied); err != nil {
			return fmt.Errorf("enforce NetworkPolicies: %w", err)
		}
	}
}

// enforce applies the current rules, unless they have already been applied. It returns the current rules.
func enforce(factory informers.SharedInformerFactory, node, applied string) (string, error) {
	state, err := readPolicyState(factory, node)
	if err != nil {
		return "", err
	}
	rules, err := state.rules()
	if err != nil || rules == applied {
		return rules, err
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin, nft.Stdout, nft.Stderr = strings.NewReader(rules), os.Stderr, os.Stderr
	if err := nft.Run(); err != nil {
		return "", fmt.Errorf("nft: %w, for\n%s", err, rules)
	}
	return rules, nil
}

func readPolicyState(factory informers.SharedInformerFactory, node string) (policyState, error) {
	state := policyState{node: node, namespaces: map[string]labels.Set{}}
	namespaces, err := factory.Core().V1().Namespaces().Lister().List(labels.Everything())
	for _, namespace := range namespaces {
		state.namespaces[namespace.Name] = namespace.Labels
	}
	if err != nil {
		return state, err
	}
	if state.pods, err = factory.Core().V1().Pods().Lister().List(labels.Everything()); err != nil {
		return state, err
	}
	state.policies, err = factory.Networking().V1().NetworkPolicies().Lister().List(labels.Everything())
	return state, err
}
