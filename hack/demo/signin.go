// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/password"
	"github.com/drover-dev/drover/test/lab"
)

// issuerLimit is how long the hub's API server may take to trust the hub's issuer. It usually takes 10 s, and a
// minute longer if the system has no file watches left.
const issuerLimit = 90 * time.Second

// person is a user who signs in to the hub with a password. Files in hack/demo define the person's rights.
type person struct{ name, role string }

func people() []person {
	return []person{
		{"admin", "administers the hub and both Clusters"},
		{"dev", "develops in the project shop of Cluster member"},
	}
}

// beginSignIn creates the users and makes the hub's API server trust the issuer. It does this in parallel with the
// next steps, because the API server takes 10 s.
func (d *demo) beginSignIn(ctx context.Context) (string, error) {
	d.signIn = d.begin(func() error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return d.trustIssuer(ctx) })
		for _, p := range people() {
			group.Go(func() error { return d.createUser(ctx, p) })
		}
		return group.Wait()
	})
	return "", nil
}

func (d *demo) awaitSignIn(context.Context) (string, error) { return "", d.signIn.wait() }

// createUser creates a User with a password, and stores the password in a file. If the password in the file is valid,
// the User is left unchanged, because a new password would end the User's sessions.
func (d *demo) createUser(ctx context.Context, p person) error {
	action, err := d.missing(ctx, p)
	if err != nil || action == "" {
		return err
	}
	secret, err := d.plugin(ctx, "user", action, p.name, "--kubeconfig", d.hub.kubeconfig)
	if err != nil {
		return err
	}
	return writeFile(d.files.password(p.name), []byte(secret))
}

// missing returns the plugin command that makes the password in a person's file valid. It returns "" if the password
// is already valid.
func (d *demo) missing(ctx context.Context, p person) (string, error) {
	err := d.hub.client.Get(ctx, types.NamespacedName{Name: p.name}, &v1.User{})
	if apierrors.IsNotFound(err) {
		return "create", nil
	}
	if err != nil {
		return "", fmt.Errorf("read User %s: %w", p.name, err)
	}
	kept, err := d.readPassword(p.name)
	if errors.Is(err, os.ErrNotExist) {
		return "password", nil
	}
	if err != nil {
		return "", err
	}
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: managerNamespace, Name: v1.UserSecretPrefix + p.name}
	if err := d.hub.client.Get(ctx, name, secret); err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read the password's hash of User %s: %w", p.name, err)
	}
	if valid, err := password.Verify(string(secret.Data[v1.UserSecretKey]), kept); err != nil || !valid {
		return "password", nil
	}
	return "", nil
}

func (d *demo) readPassword(name string) (string, error) {
	content, err := os.ReadFile(d.files.password(name))
	return strings.TrimSpace(string(content)), err
}

// plugin runs the demo's kubectl-drover and returns its output. The output may contain a password. The error contains
// its standard error.
func (d *demo) plugin(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.files.bin(plugin), args...)
	cmd.Dir, cmd.Env = d.files.root, minimalEnvironment()
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		why := strings.TrimSpace(complaint.String())
		return "", fmt.Errorf("kubectl drover %s: %w: %s", strings.Join(args, " "), err, why)
	}
	return out.String(), nil
}

// noIssuer is the authentication configuration of an API server that does not trust an issuer yet.
const noIssuer = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

// issuerArgs returns the arguments that make the hub's API server accept the tokens of signed-in users. If an API
// server starts before its issuer, it looks for the issuer again only every 10 s. For this reason, the file initially
// contains no issuer, and trustIssuer adds the issuer when the manager is ready.
func (d *demo) issuerArgs(running bool) ([]string, error) {
	file := d.files.file("authentication.yaml")
	args := []string{"--authentication-config=" + file}
	if _, err := os.Stat(file); err == nil && running {
		return args, nil
	}
	return args, writeFile(file, []byte(noIssuer))
}

func (d *demo) apiServerRuns() bool {
	pids := d.files.pids()
	if d.state.Nodes == realNodes {
		pids = filepath.Join(d.files.lab(), "clusters", hub, "pids")
	}
	names, err := lab.Running(pids)
	return err == nil && slices.Contains(names, hub+"-"+lab.APIServer)
}

// trustIssuer gives the hub's API server the configuration from the documentation, and waits until the API server uses
// it. The configuration contains the hub's URL and CA. The hub must already have keys, because the API server requests
// them only every 10 s.
func (d *demo) trustIssuer(ctx context.Context) error {
	err := await(ctx, objectLimit, func(ctx context.Context) error { return d.hubServes(ctx, signin.PathKeys) })
	if err != nil {
		return fmt.Errorf("wait for the hub's keys: %w", err)
	}
	bundle, err := d.hubBundle(ctx)
	if err != nil {
		return err
	}
	if err := writeFile(d.files.file("hub-ca.crt"), bundle); err != nil {
		return err
	}
	source, err := os.ReadFile(d.files.source("docs/operations/hub-authentication.yaml"))
	if err != nil {
		return err
	}
	content, err := authenticationConfig(source, d.url(), bundle)
	if err != nil {
		return err
	}
	file := d.files.file("authentication.yaml")
	if former, err := os.ReadFile(file); err != nil || !bytes.Equal(former, content) {
		if err := writeFile(file, content); err != nil {
			return err
		}
	}
	inUse := fmt.Appendf(nil, `hash="sha256:%x"`, sha256.Sum256(content))
	c, err := rest.HTTPClientFor(d.hub.config)
	if err != nil {
		return err
	}
	defer c.CloseIdleConnections()
	return awaitEvery(ctx, time.Second, issuerLimit, func(ctx context.Context) error {
		metrics, err := read(ctx, c, d.hub.config.Host+"/metrics")
		if err == nil && !bytes.Contains(metrics, inUse) {
			err = fmt.Errorf("the API server does not use %s yet: see its log", d.files.short(file))
		}
		return err
	})
}

// authenticationConfig returns the documentation's API server configuration, in which the hub's URL and CA are filled
// in.
func authenticationConfig(source []byte, issuer string, bundle []byte) ([]byte, error) {
	var config struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		JWT        []map[string]any `json:"jwt"`
	}
	if err := yaml.UnmarshalStrict(source, &config); err != nil {
		return nil, fmt.Errorf("read the authentication configuration: %w", err)
	}
	if len(config.JWT) != 1 {
		return nil, fmt.Errorf("the authentication configuration has %d issuers, want one", len(config.JWT))
	}
	fields, ok := config.JWT[0]["issuer"].(map[string]any)
	if !ok {
		return nil, errors.New("the authentication configuration has no issuer")
	}
	fields["url"], fields["certificateAuthority"] = issuer, string(bundle)
	return yaml.Marshal(config)
}
