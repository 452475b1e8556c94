/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Registers. BAR 0 is the queue DMA engine (AMD PG302, whose names these are), BAR 2 the shell
 * (open-nic-shell) with its ports (AMD PG203).
 */
#ifndef ONIC_REGS_H
#define ONIC_REGS_H

#include <linux/bits.h>

/* BAR 0 */
#define QDMA_BLOCK_ID			0x000
#define   QDMA_BLOCK_ID_VALUE		0x1fd30000
#define   QDMA_BLOCK_ID_MASK		GENMASK(31, 16)
#define QDMA_FUNC_RET			0x12c
#define   QDMA_FUNC_RET_MASK		GENMASK(7, 0)
#define QDMA_RNG_SZ(i)			(0x204 + 4 * (i))
#define QDMA_SCRATCH			0x244
#define QDMA_ERR_STAT			0x248
#define QDMA_ERR_MASK			0x24c
#define QDMA_DSC_CFG			0x250
#define QDMA_DSC_ERR_STAT		0x254
#define QDMA_DSC_ERR_MASK		0x258
#define QDMA_TRQ_ERR_STAT		0x264
#define QDMA_TRQ_ERR_MASK		0x268
#define QDMA_IND_DATA(i)		(0x804 + 4 * (i))
#define QDMA_IND_MASK(i)		(0x824 + 4 * (i))
#define QDMA_IND_CMD			0x844
#define   QDMA_IND_BUSY			BIT(0)
#define   QDMA_IND_SEL			GENMASK(4, 1)
#define   QDMA_IND_OP			GENMASK(6, 5)
#define   QDMA_IND_QID			GENMASK(17, 7)
#define QDMA_TIMER_CNT(i)		(0xa00 + 4 * (i))
#define QDMA_CNT_TH(i)			(0xa40 + 4 * (i))
#define QDMA_BUF_SZ(i)			(0xab0 + 4 * (i))
#define QDMA_C2H_ERR_STAT		0xaf0
#define QDMA_C2H_ERR_MASK		0xaf4
#define QDMA_ERR_INT			0xb04
#define   QDMA_ERR_INT_FUNC		GENMASK(7, 0)
#define   QDMA_ERR_INT_VEC		GENMASK(22, 12)
#define   QDMA_ERR_INT_ARM		BIT(24)
#define QDMA_PFCH_CFG			0xb08
#define QDMA_TIMER_TICK			0xb0c
#define QDMA_WB_COAL_CFG		0xb50
#define QDMA_PFCH_DEPTH			0xbe0
#define QDMA_COAL_DEPTH			0xbe4
#define QDMA_H2C_ERR_STAT		0xe00
#define QDMA_H2C_ERR_MASK		0xe04
#define QDMA_H2C_THROTTLE		0xe24
#define QDMA_H2C_PIDX(q)		(0x18004 + 16 * (q))
#define QDMA_C2H_PIDX(q)		(0x18008 + 16 * (q))
#define   QDMA_PIDX_ARM			BIT(16)
#define QDMA_CMPL_CIDX(q)		(0x1800c + 16 * (q))
#define   QDMA_CMPL_COUNTER		GENMASK(19, 16)
#define   QDMA_CMPL_TIMER		GENMASK(23, 20)
#define   QDMA_CMPL_TRIGGER		GENMASK(26, 24)
#define   QDMA_CMPL_STAT_EN		BIT(27)
#define   QDMA_CMPL_ARM			BIT(28)
#define   QDMA_TRIGGER_COUNT_TIMER	5

/* Context command */
enum { QDMA_OP_CLR, QDMA_OP_WR, QDMA_OP_RD, QDMA_OP_INV };
enum {
	QDMA_SW_C2H, QDMA_SW_H2C, QDMA_HW_C2H, QDMA_HW_H2C, QDMA_CR_C2H, QDMA_CR_H2C,
	QDMA_CMPL, QDMA_PFCH, QDMA_FMAP = 12,
};

/* Software descriptor context */
#define SW_W0_FUNC			GENMASK(24, 17)
#define SW_W1_QEN			BIT(0)
#define SW_W1_FCRD_EN			BIT(1)
#define SW_W1_WBI_CHK			BIT(2)
#define SW_W1_WBI_INTVL			BIT(3)
#define SW_W1_RING			GENMASK(15, 12)
#define SW_W1_DESC_16			(1 << 16)
#define SW_W1_WBK_EN			BIT(20)
#define SW_W1_IRQ_EN			BIT(21)
#define SW_W4_VEC			GENMASK(10, 0)
/* Prefetch context */
#define PFCH_W0_BUF			GENMASK(4, 1)
#define PFCH_W0_EN			BIT(27)
#define PFCH_W1_VALID			BIT(13)
/* Completion context */
#define CMPL_W0_STAT_EN			BIT(0)
#define CMPL_W0_INTR_EN			BIT(1)
#define CMPL_W0_TRIGGER			GENMASK(4, 2)
#define CMPL_W0_FUNC			GENMASK(12, 5)
#define CMPL_W0_COUNTER			GENMASK(20, 17)
#define CMPL_W0_TIMER			GENMASK(24, 21)
#define CMPL_W0_COLOUR			BIT(27)
#define CMPL_W0_RING			GENMASK(31, 28)
#define CMPL_W1_BASE			GENMASK(31, 6)
#define CMPL_W2_BASE			GENMASK(25, 0)
#define CMPL_W3_VALID			BIT(28)
#define CMPL_W4_VEC			GENMASK(14, 4)

/* BAR 2 */
#define SHELL_RESET			0x000c
#define SHELL_STATUS			0x0010
#define   SHELL_CMAC(p)			BIT(4 + 4 * (p))
#define SHELL_QCONF(f)			(0x1000 * ((f) + 1))
#define SHELL_INDIR(f, i)		(SHELL_QCONF(f) + 0x400 + 4 * (i))
#define SHELL_KEY(f, i)			(SHELL_QCONF(f) + 0x600 + 4 * (i))
#define ONIC_INDIR_SIZE			128
#define ONIC_KEY_WORDS			10
#define CMAC(p, reg)			(0x8000 + 0x4000 * (p) + (reg))
#define CMAC_CONF_TX			0x000c
#define CMAC_CONF_RX			0x0014
#define CMAC_VERSION			0x0024
#define   CMAC_VERSION_VALUE		0x00000301
#define CMAC_LOOPBACK			0x0090
#define CMAC_RX_STATUS			0x0204
#define   CMAC_RX_UP			GENMASK(1, 0)
#define CMAC_TICK			0x02b0
#define CMAC_TX_PACKETS			0x0500
#define CMAC_TX_BYTES			0x0510
#define CMAC_RX_PACKETS			0x0608
#define CMAC_RX_BYTES			0x0618
#define CMAC_RX_BAD_FCS			0x06c0
#define CMAC_RSFEC_ENABLE		0x107c
#define CMAC_RSFEC_CORRECTION		0x1000
#define CMAC_ADAPTER_TX_DROP		0x3010
#define CMAC_ADAPTER_RX_DROP		0x3030
#define CMAC_ADAPTER_RX_ERROR		0x3040

#endif
