// SPDX-License-Identifier: GPL-2.0
/* Registers of the engine, the shell and the port: set up, torn down and asked. */
#include <linux/bitfield.h>
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/iopoll.h>

#include "onic.h"

#define CTX_WORDS 8
#define CTX_TIMEOUT_US 500000

/*
 * Tables of the engine that all functions of the card share; every function writes the same. A ring
 * of hardware has one entry more, for its status.
 */
const u16 onic_ring_sizes[16] = {
	64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
};
const u16 onic_timers[16] = { 1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000 };
const u16 onic_counters[16] = { 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192 };

/* Lengths of receive buffers: ours, and what fits into the usual chunks of AF_XDP. */
static const u16 buf_lens[16] = {
	ONIC_BUF_LEN, 1792, 3840, 1536, 1024, 512, 256, 128, 64, 64, 64, 64, 64, 64, 64, 64,
};

/* The indirect registers belong to the card and not to a function. */
static DEFINE_MUTEX(ctx_lock);

static int ctx_command(struct onic_priv *priv, u32 sel, u32 op, u16 qid, u32 *words)
{
	u32 cmd = FIELD_PREP(QDMA_IND_SEL, sel) | FIELD_PREP(QDMA_IND_OP, op) |
		  FIELD_PREP(QDMA_IND_QID, qid);
	u32 busy;
	int i, err;

	mutex_lock(&ctx_lock);
	if (op == QDMA_OP_WR) {
		for (i = 0; i < CTX_WORDS; i++) {
			qdma_write(priv, QDMA_IND_DATA(i), words[i]);
			qdma_write(priv, QDMA_IND_MASK(i), ~0U);
		}
	}
	qdma_write(priv, QDMA_IND_CMD, cmd);
	err = readl_poll_timeout(priv->qdma + QDMA_IND_CMD, busy, !(busy & QDMA_IND_BUSY), 10,
				 CTX_TIMEOUT_US);
	if (!err && op == QDMA_OP_RD) {
		for (i = 0; i < CTX_WORDS; i++)
			words[i] = qdma_read(priv, QDMA_IND_DATA(i));
	}
	mutex_unlock(&ctx_lock);
	if (err)
		dev_err(&priv->pdev->dev, "context command %#x: timeout\n", cmd);
	return err;
}

static int ctx_write(struct onic_priv *priv, u32 sel, u16 qid, u32 *words)
{
	int err = ctx_command(priv, sel, QDMA_OP_CLR, qid, NULL);

	return err ? err : ctx_command(priv, sel, QDMA_OP_WR, qid, words);
}

int onic_hw_ring_index(u32 size)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(onic_ring_sizes); i++) {
		if (onic_ring_sizes[i] >= size)
			return i;
	}
	return -EINVAL;
}

/* The longest buffer that is not longer. */
int onic_hw_buf_index(u32 len)
{
	int i, best = -EINVAL;

	for (i = 0; i < ARRAY_SIZE(buf_lens); i++) {
		if (buf_lens[i] <= len && (best < 0 || buf_lens[i] > buf_lens[best]))
			best = i;
	}
	return best;
}

u32 onic_hw_buf_len(int index)
{
	return buf_lens[index];
}

static void engine_init(struct onic_priv *priv)
{
	u32 depth;
	int i;

	for (i = 0; i < 16; i++) {
		qdma_write(priv, QDMA_RNG_SZ(i), onic_ring_sizes[i] + 1);
		qdma_write(priv, QDMA_BUF_SZ(i), buf_lens[i]);
		/* Ticks of 100 ns, timers of microseconds. */
		qdma_write(priv, QDMA_TIMER_CNT(i), onic_timers[i] * 1000 / ONIC_TICK_NS);
		qdma_write(priv, QDMA_CNT_TH(i), onic_counters[i]);
	}
	qdma_write(priv, QDMA_TIMER_TICK, ONIC_TICK_NS / 4);
	/* Fetch up to 64 descriptors; write back after every 16. */
	qdma_write(priv, QDMA_DSC_CFG, 6 << 3 | 2);
	depth = qdma_read(priv, QDMA_PFCH_DEPTH) & 0xff;
	if (depth >= 8)
		qdma_write(priv, QDMA_PFCH_CFG,
			   256 | 8 << 9 | (depth / 2) << 18 | (depth / 2 - 2) << 25);
	depth = qdma_read(priv, QDMA_COAL_DEPTH) & 0x3f;
	qdma_write(priv, QDMA_WB_COAL_CFG, 5 << 2 | 25 << 14 | depth << 26);
	qdma_write(priv, QDMA_H2C_THROTTLE, 0x4000 | BIT(16));
}

static int port_init(struct onic_priv *priv)
{
	u8 port = priv->func;
	u32 status;
	int err;

	if (shell_read(priv, CMAC(port, CMAC_VERSION)) != CMAC_VERSION_VALUE) {
		dev_err(&priv->pdev->dev, "the card has no port %u\n", port);
		return -ENODEV;
	}
	shell_write(priv, SHELL_RESET, SHELL_CMAC(port));
	err = readl_poll_timeout(priv->shell + SHELL_STATUS, status, status & SHELL_CMAC(port),
				 1000, 1000000);
	if (err)
		return err;
	shell_write(priv, CMAC(port, CMAC_RSFEC_ENABLE), 3);
	shell_write(priv, CMAC(port, CMAC_RSFEC_CORRECTION), 7);
	shell_write(priv, CMAC(port, CMAC_CONF_RX), 1);
	shell_write(priv, CMAC(port, CMAC_CONF_TX), 1);
	return 0;
}

int onic_hw_init(struct onic_priv *priv)
{
	if ((qdma_read(priv, QDMA_BLOCK_ID) & QDMA_BLOCK_ID_MASK) != QDMA_BLOCK_ID_VALUE) {
		dev_err(&priv->pdev->dev, "BAR 0 is no QDMA engine\n");
		return -ENODEV;
	}
	priv->func = FIELD_GET(QDMA_FUNC_RET_MASK, qdma_read(priv, QDMA_FUNC_RET));
	if (priv->func > 3)
		return -ENODEV;
	priv->qbase = priv->func * ONIC_QUEUES;
	engine_init(priv);
	return port_init(priv);
}

void onic_hw_fini(struct onic_priv *priv)
{
	shell_write(priv, CMAC(priv->func, CMAC_CONF_RX), 0);
	shell_write(priv, CMAC(priv->func, CMAC_CONF_TX), 0);
	shell_write(priv, SHELL_QCONF(priv->func), 0);
	if (priv->error_irq)
		qdma_write(priv, QDMA_ERR_INT, 0);
	ctx_command(priv, QDMA_FMAP, QDMA_OP_CLR, priv->func, NULL);
}

/* Which queues are the function's, said to the engine and to the shell. */
int onic_hw_map(struct onic_priv *priv)
{
	u32 words[CTX_WORDS] = { priv->qbase, ONIC_QUEUES };
	int err = ctx_write(priv, QDMA_FMAP, priv->func, words);

	if (err)
		return err;
	shell_write(priv, SHELL_QCONF(priv->func), priv->qbase << 16 | ONIC_QUEUES);
	return 0;
}

void onic_hw_rss(struct onic_priv *priv)
{
	int i;

	for (i = 0; i < ONIC_INDIR_SIZE; i++)
		shell_write(priv, SHELL_INDIR(priv->func, i), priv->indir[i]);
	for (i = 0; i < ONIC_KEY_WORDS; i++)
		shell_write(priv, SHELL_KEY(priv->func, i), priv->key[i]);
}

int onic_hw_start_tx(struct onic_priv *priv, struct onic_tx *tx, u16 vector)
{
	u32 words[CTX_WORDS] = {
		FIELD_PREP(SW_W0_FUNC, priv->func),
		SW_W1_QEN | SW_W1_WBI_CHK | SW_W1_WBI_INTVL | SW_W1_DESC_16 | SW_W1_WBK_EN |
			SW_W1_IRQ_EN | FIELD_PREP(SW_W1_RING, tx->ring_index),
		lower_32_bits(tx->dma), upper_32_bits(tx->dma),
		FIELD_PREP(SW_W4_VEC, vector),
	};
	u16 qid = priv->qbase + tx->qid;
	int err;

	err = ctx_command(priv, QDMA_HW_H2C, QDMA_OP_CLR, qid, NULL);
	err = err ?: ctx_command(priv, QDMA_CR_H2C, QDMA_OP_CLR, qid, NULL);
	return err ?: ctx_write(priv, QDMA_SW_H2C, qid, words);
}

void onic_hw_stop_tx(struct onic_priv *priv, struct onic_tx *tx)
{
	u16 qid = priv->qbase + tx->qid;

	ctx_command(priv, QDMA_SW_H2C, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_HW_H2C, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_CR_H2C, QDMA_OP_INV, qid, NULL);
}

int onic_hw_start_rx(struct onic_priv *priv, struct onic_rx *rx, u16 vector)
{
	u32 sw[CTX_WORDS] = {
		FIELD_PREP(SW_W0_FUNC, priv->func),
		SW_W1_QEN | SW_W1_FCRD_EN | SW_W1_WBK_EN | FIELD_PREP(SW_W1_RING, rx->ring_index),
		lower_32_bits(rx->dma), upper_32_bits(rx->dma),
	};
	u32 pfch[CTX_WORDS] = {
		FIELD_PREP(PFCH_W0_BUF, onic_hw_buf_index(rx->buf_len)) | PFCH_W0_EN,
		PFCH_W1_VALID,
	};
	u32 cmpl[CTX_WORDS] = {
		CMPL_W0_STAT_EN | CMPL_W0_INTR_EN | CMPL_W0_COLOUR |
			FIELD_PREP(CMPL_W0_TRIGGER, QDMA_TRIGGER_COUNT_TIMER) |
			FIELD_PREP(CMPL_W0_FUNC, priv->func) |
			FIELD_PREP(CMPL_W0_COUNTER, priv->counter_index) |
			FIELD_PREP(CMPL_W0_TIMER, priv->timer_index) |
			FIELD_PREP(CMPL_W0_RING, rx->ring_index),
		FIELD_PREP(CMPL_W1_BASE, rx->cmpl_dma >> 12 & GENMASK(25, 0)),
		FIELD_PREP(CMPL_W2_BASE, rx->cmpl_dma >> 38),
		CMPL_W3_VALID,
		FIELD_PREP(CMPL_W4_VEC, vector),
	};
	u16 qid = priv->qbase + rx->qid;
	int err;

	err = ctx_command(priv, QDMA_HW_C2H, QDMA_OP_CLR, qid, NULL);
	err = err ?: ctx_command(priv, QDMA_CR_C2H, QDMA_OP_CLR, qid, NULL);
	err = err ?: ctx_write(priv, QDMA_SW_C2H, qid, sw);
	err = err ?: ctx_write(priv, QDMA_PFCH, qid, pfch);
	return err ?: ctx_write(priv, QDMA_CMPL, qid, cmpl);
}

void onic_hw_stop_rx(struct onic_priv *priv, struct onic_rx *rx)
{
	u16 qid = priv->qbase + rx->qid;

	ctx_command(priv, QDMA_SW_C2H, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_PFCH, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_CMPL, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_HW_C2H, QDMA_OP_INV, qid, NULL);
	ctx_command(priv, QDMA_CR_C2H, QDMA_OP_INV, qid, NULL);
}

/* The status remembers that the link was down until it is read. */
bool onic_hw_link(struct onic_priv *priv)
{
	u32 status = shell_read(priv, CMAC(priv->func, CMAC_RX_STATUS));

	if ((status & CMAC_RX_UP) != CMAC_RX_UP)
		status = shell_read(priv, CMAC(priv->func, CMAC_RX_STATUS));
	return (status & CMAC_RX_UP) == CMAC_RX_UP;
}

static u64 port_counter(struct onic_priv *priv, u32 reg)
{
	u32 low = shell_read(priv, CMAC(priv->func, reg));

	return low | (u64)shell_read(priv, CMAC(priv->func, reg + 4)) << 32;
}

/* Adds what the port counted since the last time. */
void onic_hw_port_stats(struct onic_priv *priv)
{
	static const u16 regs[] = { CMAC_TX_PACKETS, CMAC_TX_BYTES, CMAC_RX_PACKETS,
				    CMAC_RX_BYTES, CMAC_RX_BAD_FCS };
	int i;

	mutex_lock(&priv->port_lock);
	shell_write(priv, CMAC(priv->func, CMAC_TICK), 1);
	for (i = 0; i < ARRAY_SIZE(regs); i++)
		priv->port[i] += port_counter(priv, regs[i]);
	/* This one counts for ever. */
	priv->port[5] = port_counter(priv, CMAC_ADAPTER_RX_DROP);
	mutex_unlock(&priv->port_lock);
}

static const struct {
	u32 stat, mask, errors;
	const char *name;
} error_regs[] = {
	{ QDMA_DSC_ERR_STAT, QDMA_DSC_ERR_MASK, 0x01f9023f, "descriptor" },
	{ QDMA_TRQ_ERR_STAT, QDMA_TRQ_ERR_MASK, 0xf, "register" },
	{ QDMA_C2H_ERR_STAT, QDMA_C2H_ERR_MASK, 0xfedb, "receive" },
	{ QDMA_H2C_ERR_STAT, QDMA_H2C_ERR_MASK, 0x1f, "send" },
};

void onic_hw_errors_arm(struct onic_priv *priv)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(error_regs); i++)
		qdma_write(priv, error_regs[i].mask, error_regs[i].errors);
	qdma_write(priv, QDMA_ERR_MASK, BIT(2) | BIT(3) | BIT(8) | BIT(11));
	qdma_write(priv, QDMA_ERR_INT, FIELD_PREP(QDMA_ERR_INT_FUNC, priv->func) |
		   FIELD_PREP(QDMA_ERR_INT_VEC, 0) | QDMA_ERR_INT_ARM);
}

void onic_hw_errors_report(struct onic_priv *priv)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(error_regs); i++) {
		u32 errors = qdma_read(priv, error_regs[i].stat);

		if (!errors)
			continue;
		priv->card_errors++;
		dev_err_ratelimited(&priv->pdev->dev, "%s errors %#x\n", error_regs[i].name, errors);
		qdma_write(priv, error_regs[i].stat, errors);
	}
	qdma_write(priv, QDMA_ERR_STAT, ~0U);
	onic_hw_errors_arm(priv);
}

/* Registers keep what is written, and the context of a queue that is stopped reads back. */
int onic_hw_self_test(struct onic_priv *priv)
{
	static const u32 patterns[] = { 0x55555555, 0xaaaaaaaa, 0, ~0U };
	u32 words[CTX_WORDS] = { 0 };
	int i, err;

	for (i = 0; i < ARRAY_SIZE(patterns); i++) {
		qdma_write(priv, QDMA_SCRATCH, patterns[i]);
		if (qdma_read(priv, QDMA_SCRATCH) != patterns[i])
			return -EIO;
	}
	err = ctx_command(priv, QDMA_FMAP, QDMA_OP_RD, priv->func, words);
	if (err)
		return err;
	return words[0] == priv->qbase && words[1] == ONIC_QUEUES ? 0 : -EIO;
}
