// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/controllers/authority"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/wiring"
)

// authorities lists the controllers for the hub's CA.
func authorities(s shared) []wiring.Controller {
	loader := &authority.Loader{
		Client: s.client, Live: s.live, Trust: s.Trust, Authority: s.own(trust.AuthoritySecret), Now: time.Now,
	}
	if name := s.Config.Server.TLSSecretName; name != "" {
		loader.Given = s.own(name)
		s.Trust.AwaitGiven()
	}
	publisher := &authority.Publisher{Client: s.client, Settings: s.settings, ConfigMap: s.own(trust.AuthorityConfigMap)}
	keeper := &authority.Keeper{
		Client: s.client, Recorder: s.recorder("drover-authority"), Secret: s.own(trust.AuthoritySecret),
		Member: s.Members.State, Settings: s.settings, Now: time.Now,
	}
	return []wiring.Controller{
		{
			Name: "authority-loader", Reconciler: loader, EveryReplica: true,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&corev1.Secret{}, wiring.Named(loader.Authority, loader.Given)),
				wiring.RequestOnStart(loader.Authority, loader.Given),
			},
		},
		{
			Name: "authority-publisher", Reconciler: publisher,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&corev1.ConfigMap{}, wiring.Named(publisher.ConfigMap)),
				wiring.RequestOnStart(publisher.ConfigMap),
				wiring.RequestOnCall(publisher.ConfigMap, s.Trust.OnChange, 0),
			},
		},
		{
			Name: "authority", Reconciler: keeper,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&corev1.Secret{}, wiring.Named(keeper.Secret)),
				wiring.RequestOnStart(keeper.Secret),
				wiring.RequestOnCall(keeper.Secret, s.Trust.OnChange, 0),
				// An old authority may have been kept only for this member. The member has now confirmed the new
				// authority or has been lost.
				wiring.RequestOnCall(keeper.Secret, wiring.WithoutName(s.Members.OnChange), time.Second),
			},
		},
	}
}
