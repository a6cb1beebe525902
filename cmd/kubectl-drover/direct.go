// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/login"
)

const (
	// answerLimit is how long a Cluster's own address may take to answer, to be preferred to the way by the hub.
	answerLimit = 2 * time.Second
	// renewLimit is how long the hub may take to give another token while there is one that is valid, and renewPause how long it is not asked again then.
	renewLimit, renewPause = 3 * time.Second, 30 * time.Second
)

// directAccess is where a Cluster is reached without the hub.
type directAccess struct {
	Server string `json:"server"`
	// CA in PEM, empty for those that the computer trusts.
	CA string `json:"caBundle,omitempty"`
}

// answers reports whether the address serves users now. It refuses a request without a token, which tells enough.
func (d *directAccess) answers(ctx context.Context) bool {
	if d == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	client, err := login.Client([]byte(d.CA))
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Server+"/version", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusUnauthorized
}

// addDirect adds the context of a Cluster's own address to a kubeconfig, beside the one by the hub, and returns its name; empty if the Cluster has none.
func addDirect(config *clientcmdapi.Config, session *login.Session, c reachableCluster, hub string) string {
	if c.Direct == nil {
		return ""
	}
	name := hub + "-direct"
	cluster, auth, context := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo(), clientcmdapi.NewContext()
	if was := config.Clusters[name]; was != nil { // it stays in its file
		cluster.LocationOfOrigin = was.LocationOfOrigin
	}
	if was := config.AuthInfos[name]; was != nil {
		auth.LocationOfOrigin = was.LocationOfOrigin
	}
	if was := config.Contexts[name]; was != nil {
		context = was
	} else {
		context.Namespace = config.Contexts[hub].Namespace
	}
	cluster.Server, cluster.CertificateAuthorityData = c.Direct.Server, []byte(c.Direct.CA)
	auth.Exec = execCredential("get-token", "--hub", session.Issuer, "--cluster", c.String(), "--direct")
	context.Cluster, context.AuthInfo = name, name
	config.Clusters[name], config.AuthInfos[name], config.Contexts[name] = cluster, auth, context
	return name
}

// getDirectToken prints a token for a Cluster's own address. It is kept, and renewed when half of its life is over: it must last while there is no hub.
func (o *options) getDirectToken(c *cobra.Command, s signing, store login.Store, issuer string) error {
	now := store.Now()
	kept, there := login.DirectToken{}, false
	if session, err := store.Load(issuer); err == nil {
		kept, there = session.Direct[o.cluster]
	}
	there = there && kept.Usable(now)
	if there && (now.Before(kept.Half()) || now.Before(kept.Tried.Add(renewPause))) {
		return printDirect(c, kept, now)
	}
	limit := s.timeout + commandLimit
	if there {
		limit = renewLimit
	}
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	next, err := o.fetchDirect(ctx, c, s, store, issuer, there)
	if err == nil || !there || errors.Is(err, login.ErrSignedOut) {
		if err != nil {
			return err
		}
		return printDirect(c, next, now)
	}
	kept.Tried = now
	ctx, cancel = context.WithTimeout(context.WithoutCancel(c.Context()), renewLimit)
	defer cancel()
	if err := store.KeepDirect(ctx, issuer, o.cluster, kept); err != nil {
		fmt.Fprintln(c.ErrOrStderr(), "The hub is asked again at the next command:", plain(err.Error()))
	}
	return printDirect(c, kept, now)
}

// fetchDirect has the hub give a token, and keeps it. A user is asked to sign in only where there is no token that is valid.
func (o *options) fetchDirect(ctx context.Context, c *cobra.Command, s signing, store login.Store, issuer string, quiet bool) (login.DirectToken, error) {
	session, err := o.freshSession(ctx, c, s, store, issuer, quiet)
	if err != nil {
		return login.DirectToken{}, err
	}
	at, err := login.Discover(ctx, issuer, session.CA)
	if err != nil {
		return login.DirectToken{}, untrustedHub(err)
	}
	from := store.Now()
	token, until, err := at.ForAudience(ctx, session, issuer+"/k8s/clusters/"+o.cluster)
	if err != nil {
		return login.DirectToken{}, err
	}
	next := login.DirectToken{Token: token, From: from, Until: until}
	return next, store.KeepDirect(ctx, issuer, o.cluster, next)
}

// printDirect prints a token for as long as it is not to be renewed, so that a program which runs for days asks in time.
func printDirect(c *cobra.Command, t login.DirectToken, now time.Time) error {
	until := t.Half()
	if !now.Before(until) {
		until = now.Add(renewPause)
	}
	if last := t.Last(); last.Before(until) {
		until = last
	}
	return printCredential(c, t.Token, metav1.NewTime(until))
}
