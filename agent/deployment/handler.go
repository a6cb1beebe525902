// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"net/http"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxBody bounds a Deployment, in bytes. The agent's takes a twentieth of it.
const maxBody = 128 << 10

// Handler is the http.Handler of protocol.PathDeployment.
type Handler struct {
	// Secrets of the agent's namespace.
	Secrets *kube.Secrets
	// Setup of the agent.
	Setup Setup
	Log   logr.Logger
}

// ServeHTTP answers PUT with 202 once the Deployment is kept for the leader, and with 422 and the reason if it is not
// one that this agent takes. Any replica may be asked: they share the Secret that it is kept in.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, ok := protocol.ReadPut(w, r, "deployment", maxBody)
	if !ok {
		return
	}
	d, err := Decode(raw)
	if err == nil {
		err = Check(d, h.Setup)
	}
	if err != nil {
		h.Log.Error(err, "deployment refused")
		http.Error(w, "the agent refuses the deployment: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if err := (store{h.Secrets}).want(r.Context(), digestOf(d), raw); err != nil {
		h.Log.Error(err, "deployment not kept")
		http.Error(w, "the deployment could not be kept: try again", http.StatusServiceUnavailable)
		return
	}
	h.Log.Info("deployment taken over", "digest", digestOf(d))
	w.WriteHeader(http.StatusAccepted)
}
